/* Loads an encoder, runs it on some token ids, and prints what it gives: `run MODEL.onnx`. */

#include <graphene.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program where a call failed. */
static void check(graphene_status status, const char *what) {
    if (status != GRAPHENE_STATUS_OK) {
        fprintf(stderr, "%s: %s (status %u, code %u)\n", what, graphene_last_error_message(), (unsigned)status,
                (unsigned)graphene_last_error_code());
        exit(1);
    }
}

static void print_ports(const char *kind, const graphene_port *ports, size_t count) {
    for (size_t i = 0; i < count; i++) {
        printf("%s %s [", kind, ports[i].name);
        for (size_t axis = 0; axis < ports[i].rank; axis++)
            printf("%s%s", axis ? ", " : "", ports[i].dims[axis]);
        printf("]\n");
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: run MODEL.onnx\n");
        return 2;
    }
    if (graphene_abi_version() != GRAPHENE_ABI_VERSION) {
        fprintf(stderr, "the library is not the one that graphene.h is of\n");
        return 1;
    }

    graphene_engine_options engine_options = {0};
    engine_options.device = GRAPHENE_DEVICE_CPU;
    engine_options.threads = 2;
    graphene_engine *engine = NULL;
    check(graphene_engine_new(&engine_options, &engine), "engine");

    /* Requests run at the smallest of these batches that holds them. */
    const size_t batches[] = {1, 8};
    graphene_dim_rule batch = {0};
    batch.name = "batch";
    batch.kind = GRAPHENE_DIM_KIND_BUCKETS;
    batch.sizes = batches;
    batch.size_count = 2;
    graphene_model_options model_options = {0};
    model_options.dims = &batch;
    model_options.dim_count = 1;
    graphene_model *model = NULL;
    check(graphene_model_load(engine, argv[1], &model_options, &model), "model");

    const graphene_port *takes, *gives;
    size_t take_count, give_count;
    check(graphene_model_inputs(model, &takes, &take_count), "inputs");
    check(graphene_model_outputs(model, &gives, &give_count), "outputs");
    print_ports("input", takes, take_count);
    print_ports("output", gives, give_count);

    graphene_context *context = NULL;
    check(graphene_context_new(model, &context), "context");
    const int64_t ids[] = {2, 7, 1, 8, 3, 1, 4, 1}, ones[] = {1, 1, 1, 1, 1, 1, 1, 1}, zeros[8] = {0};
    const size_t shape[] = {2, 4};
    const graphene_input inputs[] = {
        {"input_ids", GRAPHENE_DTYPE_I64, 2, shape, ids, sizeof ids},
        {"attention_mask", GRAPHENE_DTYPE_I64, 2, shape, ones, sizeof ones},
        {"token_type_ids", GRAPHENE_DTYPE_I64, 2, shape, zeros, sizeof zeros},
    };
    graphene_run_options run_options = {0};
    run_options.deadline_ms = 60000;
    graphene_outputs *outputs = NULL;
    check(graphene_context_run(context, inputs, take_count, &run_options, &outputs), "run");

    const graphene_tensor *tensors;
    size_t count;
    check(graphene_outputs_tensors(outputs, &tensors, &count), "tensors");
    for (size_t i = 0; i < count; i++) {
        printf("%s:", tensors[i].name);
        for (size_t axis = 0; axis < tensors[i].rank; axis++)
            printf(" %zu", tensors[i].shape[axis]);
        if (tensors[i].dtype == GRAPHENE_DTYPE_F32 && tensors[i].byte_len > 0)
            printf(", from %f on", (double)*(const float *)tensors[i].data);
        printf("\n");
    }

    /* The same into memory of our own. */
    const graphene_tensor *first = &tensors[0];
    float *own = malloc(first->byte_len);
    if (own == NULL)
        return 1;
    graphene_output_buffer buffer = {0};
    buffer.name = first->name;
    buffer.dtype = first->dtype;
    buffer.data = own;
    buffer.byte_len = first->byte_len;
    check(graphene_context_run_into(context, inputs, take_count, &buffer, 1, NULL), "run into");
    printf("again: %s\n", own[0] == *(const float *)first->data ? "the same" : "something else");

    free(own);
    graphene_outputs_free(outputs);
    graphene_context_free(context);
    graphene_model_free(model);
    graphene_engine_free(engine);
    return 0;
}
