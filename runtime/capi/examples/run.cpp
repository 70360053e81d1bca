// Loads an encoder and runs it from four threads by a pool: `run MODEL.onnx`.

#include <graphene.hpp>

#include <iostream>
#include <thread>

int main(int argc, char **argv) try {
    if (argc != 2) {
        std::cerr << "usage: run MODEL.onnx\n";
        return 2;
    }
    graphene_engine_options options = {};
    options.device = GRAPHENE_DEVICE_CPU;
    options.threads = 2;
    graphene::Engine engine(options);
    graphene::Model model(engine, argv[1]);
    for (const graphene_port &port : model.inputs())
        std::cout << "input " << port.name << " of " << port.rank << " dimensions\n";

    const std::vector<std::size_t> shape = {1, 4};
    const std::vector<std::int64_t> ids = {2, 7, 1, 8}, ones(4, 1), zeros(4, 0);
    std::vector<graphene_input> inputs = {
        graphene::input("input_ids", ids, shape),
        graphene::input("attention_mask", ones, shape),
        graphene::input("token_type_ids", zeros, shape),
    };
    inputs.resize(model.inputs().size());

    graphene_pool_options pool_options = {};
    pool_options.contexts = 2;
    graphene::Pool pool(model, pool_options);
    const std::string first = model.outputs().at(0).name;
    std::vector<std::vector<float>> found(4);
    std::vector<std::thread> threads;
    for (std::vector<float> &own : found)
        threads.emplace_back([&] { own = pool.run(inputs).to_vector<float>(first.c_str()); });
    for (std::thread &thread : threads)
        thread.join();
    bool same = true;
    for (const std::vector<float> &own : found)
        same = same && own == found[0];
    std::cout << first << ": " << found[0].size() << " elements, from " << found[0].at(0) << " on, "
              << (same ? "the same" : "not the same") << " from four threads\n";

    // What goes wrong is thrown.
    try {
        graphene::Context(model).run({});
    } catch (const graphene::Error &error) {
        std::cout << "error " << error.code() << ": " << error.what() << "\n";
    }
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
