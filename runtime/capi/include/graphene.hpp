// Graphene for C++17: handles that free themselves, and errors that are thrown.

#ifndef GRAPHENE_HPP
#define GRAPHENE_HPP

#include "graphene.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace graphene {

/// What a call that failed leaves.
class Error : public std::runtime_error {
  public:
    Error()
        : std::runtime_error(graphene_last_error_message()), status_(graphene_last_error_status()),
          code_(graphene_last_error_code()) {}

    graphene_status status() const noexcept { return status_; }
    std::uint32_t code() const noexcept { return code_; }

  private:
    graphene_status status_;
    std::uint32_t code_;
};

/// Throws where a call failed.
inline void check(graphene_status status) {
    if (status != GRAPHENE_STATUS_OK)
        throw Error();
}

/// The type of the elements that `T` stores.
template <typename T> struct dtype_of;
template <> struct dtype_of<float> { static constexpr auto value = GRAPHENE_DTYPE_F32; };
template <> struct dtype_of<double> { static constexpr auto value = GRAPHENE_DTYPE_F64; };
template <> struct dtype_of<std::int8_t> { static constexpr auto value = GRAPHENE_DTYPE_I8; };
template <> struct dtype_of<std::int16_t> { static constexpr auto value = GRAPHENE_DTYPE_I16; };
template <> struct dtype_of<std::int32_t> { static constexpr auto value = GRAPHENE_DTYPE_I32; };
template <> struct dtype_of<std::int64_t> { static constexpr auto value = GRAPHENE_DTYPE_I64; };
template <> struct dtype_of<std::uint8_t> { static constexpr auto value = GRAPHENE_DTYPE_U8; };
template <> struct dtype_of<std::uint16_t> { static constexpr auto value = GRAPHENE_DTYPE_U16; };
template <> struct dtype_of<std::uint32_t> { static constexpr auto value = GRAPHENE_DTYPE_U32; };
template <> struct dtype_of<std::uint64_t> { static constexpr auto value = GRAPHENE_DTYPE_U64; };

/// A handle with the function that frees it.
template <typename T, void (*Free)(T *)> struct Freed {
    void operator()(T *handle) const noexcept { Free(handle); }
};
template <typename T, void (*Free)(T *)> using Handle = std::unique_ptr<T, Freed<T, Free>>;

/// An input that borrows name, elements and shape, all of which have to last until the run ends.
template <typename T>
graphene_input input(const char *name, const std::vector<T> &elements, const std::vector<std::size_t> &shape) {
    return {name, dtype_of<T>::value, shape.size(), shape.data(), elements.data(), elements.size() * sizeof(T)};
}

/// The outputs of a run.
class Outputs {
  public:
    explicit Outputs(graphene_outputs *outputs) : outputs_(outputs) {}

    /// All of them, in the order of the model's.
    std::vector<graphene_tensor> tensors() const {
        const graphene_tensor *tensors;
        std::size_t count;
        check(graphene_outputs_tensors(outputs_.get(), &tensors, &count));
        return {tensors, tensors + count};
    }

    /// The output of this name, which borrows.
    const graphene_tensor &operator[](const char *name) const {
        const graphene_tensor *tensor;
        check(graphene_outputs_find(outputs_.get(), name, &tensor));
        return *tensor;
    }

    /// The elements of the output of this name.
    template <typename T> std::vector<T> to_vector(const char *name) const {
        const graphene_tensor &tensor = (*this)[name];
        if (tensor.dtype != dtype_of<T>::value)
            throw std::invalid_argument(std::string(name) + " has elements of another type");
        const T *elements = static_cast<const T *>(tensor.data);
        return {elements, elements + tensor.byte_len / sizeof(T)};
    }

  private:
    Handle<graphene_outputs, graphene_outputs_free> outputs_;
};

/// Ends runs from another thread.
class Cancel {
  public:
    Cancel() {
        graphene_cancel *cancel;
        check(graphene_cancel_new(&cancel));
        cancel_.reset(cancel);
    }

    void set() { check(graphene_cancel_set(cancel_.get())); }
    const graphene_cancel *get() const noexcept { return cancel_.get(); }

  private:
    Handle<graphene_cancel, graphene_cancel_free> cancel_;
};

class Engine {
  public:
    explicit Engine(const graphene_engine_options &options = {}) {
        if (graphene_abi_version() != GRAPHENE_ABI_VERSION)
            throw std::runtime_error("the library is not the one that graphene.h is of");
        graphene_engine *engine;
        check(graphene_engine_new(&options, &engine));
        engine_.reset(engine);
    }

    const graphene_engine *get() const noexcept { return engine_.get(); }

  private:
    Handle<graphene_engine, graphene_engine_free> engine_;
};

class Model {
  public:
    Model(const Engine &engine, const std::string &path, const graphene_model_options &options = {}) {
        graphene_model *model;
        check(graphene_model_load(engine.get(), path.c_str(), &options, &model));
        model_.reset(model);
    }

    /// What it takes, in order; borrowed.
    std::vector<graphene_port> inputs() const {
        const graphene_port *ports;
        std::size_t count;
        check(graphene_model_inputs(model_.get(), &ports, &count));
        return {ports, ports + count};
    }

    /// What it gives, in order; borrowed.
    std::vector<graphene_port> outputs() const {
        const graphene_port *ports;
        std::size_t count;
        check(graphene_model_outputs(model_.get(), &ports, &count));
        return {ports, ports + count};
    }

    const graphene_model *get() const noexcept { return model_.get(); }

  private:
    Handle<graphene_model, graphene_model_free> model_;
};

/// Runs a model, one request at a time.
class Context {
  public:
    explicit Context(const Model &model) {
        graphene_context *context;
        check(graphene_context_new(model.get(), &context));
        context_.reset(context);
    }

    Outputs run(const std::vector<graphene_input> &inputs, const graphene_run_options &options = {}) {
        graphene_outputs *outputs;
        check(graphene_context_run(context_.get(), inputs.data(), inputs.size(), &options, &outputs));
        return Outputs(outputs);
    }

    void run_into(const std::vector<graphene_input> &inputs, const std::vector<graphene_output_buffer> &outputs,
                  const graphene_run_options &options = {}) {
        check(graphene_context_run_into(context_.get(), inputs.data(), inputs.size(), outputs.data(), outputs.size(),
                                        &options));
    }

  private:
    Handle<graphene_context, graphene_context_free> context_;
};

/// Contexts for several threads.
class Pool {
  public:
    explicit Pool(const Model &model, const graphene_pool_options &options = {}) {
        graphene_pool *pool;
        check(graphene_pool_new(model.get(), &options, &pool));
        pool_.reset(pool);
    }

    Outputs run(const std::vector<graphene_input> &inputs, const graphene_run_options &options = {}) const {
        graphene_outputs *outputs;
        check(graphene_pool_run(pool_.get(), inputs.data(), inputs.size(), &options, &outputs));
        return Outputs(outputs);
    }

  private:
    Handle<graphene_pool, graphene_pool_free> pool_;
};

} // namespace graphene

#endif // GRAPHENE_HPP
