/* Calls against the rules are refused, and errors arrive as they are: `misuse MODEL.onnx`. */

#include <graphene.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program where a call has another status or code than expected. */
static void expect_at(int line, graphene_status found, graphene_status status, uint32_t code) {
    if (found != status || (status != GRAPHENE_STATUS_OK &&
                            (graphene_last_error_code() != code || graphene_last_error_status() != status ||
                             graphene_last_error_message()[0] == '\0'))) {
        fprintf(stderr, "line %d: status %u, code %u: %s\n", line, (unsigned)found,
                (unsigned)graphene_last_error_code(), graphene_last_error_message());
        exit(1);
    }
}
#define expect(call, status, code) expect_at(__LINE__, call, GRAPHENE_STATUS_##status, code)
#define fine(call) expect_at(__LINE__, call, GRAPHENE_STATUS_OK, 0)

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    if (graphene_last_error_message()[0] != '\0' || graphene_last_error_status() != GRAPHENE_STATUS_OK)
        return 1;

    /* Engines. */
    graphene_engine *engine = NULL;
    expect(graphene_engine_new(NULL, NULL), MISUSE, 1001);
    graphene_engine_options odd = {0};
    odd.device = 77;
    engine = (graphene_engine *)&odd;
    expect(graphene_engine_new(&odd, &engine), MISUSE, 1005);
    if (engine != NULL)
        return 1;
    odd.device = GRAPHENE_DEVICE_CPU;
    odd.kernel_cache = "\xff\xfe";
    expect(graphene_engine_new(&odd, &engine), MISUSE, 1004);
    odd.kernel_cache = NULL;
    odd.threads = 1;
    fine(graphene_engine_new(&odd, &engine));
    expect(graphene_engine_health(NULL), MISUSE, 1001);
    fine(graphene_engine_health(engine));
    size_t number = 0;
    fine(graphene_engine_threads(engine, &number));
    const char *name = NULL;
    fine(graphene_engine_device(engine, &name));
    if (number != 1 || strcmp(name, "cpu") != 0)
        return 1;
    expect(graphene_dtype_size(8, &number), MISUSE, 1005);
    fine(graphene_dtype_size(GRAPHENE_DTYPE_BF16, &number));
    if (number != 2)
        return 1;

    /* Models. */
    graphene_model *model = NULL;
    expect(graphene_model_load(engine, NULL, NULL, &model), MISUSE, 1001);
    expect(graphene_model_load(NULL, argv[1], NULL, &model), MISUSE, 1001);
    expect(graphene_model_load(engine, "/nowhere.onnx", NULL, &model), MODEL, 601);
    expect(graphene_model_load_bytes(engine, "no model", 8, NULL, &model), MODEL, 603);
    graphene_dim_rule rule = {0};
    graphene_model_options rules = {0};
    rules.dim_count = 1;
    expect(graphene_model_load(engine, argv[1], &rules, &model), MISUSE, 1001);
    rules.dims = &rule;
    expect(graphene_model_load(engine, argv[1], &rules, &model), MISUSE, 1001);
    rule.name = "batch";
    expect(graphene_model_load(engine, argv[1], &rules, &model), MISUSE, 1007);
    const size_t sizes[] = {1, 4};
    rule.sizes = sizes;
    rule.size_count = 2;
    rule.kind = GRAPHENE_DIM_KIND_RANGE;
    rule.name = "no such dim";
    expect(graphene_model_load(engine, argv[1], &rules, &model), REQUEST, 110);
    rule.name = "batch";
    fine(graphene_model_load(engine, argv[1], &rules, &model));

    const graphene_port *ports = NULL;
    size_t count = 0;
    expect(graphene_model_inputs(model, NULL, &count), MISUSE, 1001);
    fine(graphene_model_inputs(model, &ports, &count));
    if (count == 0 || ports[0].shape[0] != -1 || strcmp(ports[0].dims[0], "batch") != 0)
        return 1;

    /* Values of inputs. */
    const int64_t zeros[8] = {0};
    const size_t constant_shape[] = {2, 4};
    graphene_input constant = {"token_type_ids", GRAPHENE_DTYPE_I64, 2, constant_shape, zeros, sizeof zeros};
    graphene_model_options constants = {0};
    constants.constant_count = 1;
    constants.constants = &constant;
    graphene_model *without = NULL;
    fine(graphene_model_load(engine, argv[1], &constants, &without));
    graphene_model_free(without);
    constant.byte_len = 63;
    expect(graphene_model_load(engine, argv[1], &constants, &without), REQUEST, 117);
    constant.name = NULL;
    expect(graphene_model_load(engine, argv[1], &constants, &without), MISUSE, 1001);

    const char *const *notes = NULL;
    fine(graphene_model_notes(model, &notes, &number));
    graphene_size dims[] = {{"batch", 2}, {"sequence", 4}};
    graphene_footprint footprint = {0};
    fine(graphene_model_footprint(model, dims, 2, &footprint));
    if (footprint.weights == 0 || footprint.outputs == 0)
        return 1;
    expect(graphene_model_footprint(model, dims, 1, &footprint), REQUEST, 108);

    /* Runs. */
    graphene_context *context = NULL;
    fine(graphene_context_new(model, &context));
    fine(graphene_context_bind(context, dims, 2));
    const int64_t ids[9] = {1, 2, 3, 4, 5, 6, 7, 8, 0};
    const size_t shape[] = {2, 4};
    graphene_input inputs[8];
    memset(inputs, 0, sizeof inputs);
    if (count > 8)
        return 1;
    for (size_t i = 0; i < count; i++) {
        inputs[i].dtype = GRAPHENE_DTYPE_I64;
        inputs[i].rank = 2;
        inputs[i].shape = shape;
        inputs[i].data = ids;
        inputs[i].byte_len = 64;
    }
    /* Masks and token types of ones. */
    const int64_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (size_t i = 1; i < count; i++)
        inputs[i].data = ones;
    graphene_outputs *outputs = NULL;
    expect(graphene_context_run(NULL, inputs, count, NULL, &outputs), MISUSE, 1001);
    expect(graphene_context_run(context, NULL, count, NULL, &outputs), MISUSE, 1001);
    expect(graphene_context_run(context, (const graphene_input *)((const char *)inputs + 1), 1, NULL, &outputs), MISUSE,
           1002);
    expect(graphene_context_run(context, inputs, SIZE_MAX, NULL, &outputs), MISUSE, 1003);
    expect(graphene_context_run(context, inputs, count, NULL, NULL), MISUSE, 1001);
    expect(graphene_context_run(context, inputs, 0, NULL, &outputs), REQUEST, 102);
    inputs[0].dtype = 8;
    expect(graphene_context_run(context, inputs, count, NULL, &outputs), MISUSE, 1005);
    inputs[0].dtype = GRAPHENE_DTYPE_F64;
    expect(graphene_context_run(context, inputs, count, NULL, &outputs), REQUEST, 105);
    inputs[0].dtype = GRAPHENE_DTYPE_I64;
    inputs[0].byte_len = 63;
    expect(graphene_context_run(context, inputs, count, NULL, &outputs), REQUEST, 105);
    inputs[0].byte_len = 64;
    inputs[0].name = "no such input";
    expect(graphene_context_run(context, inputs, count, NULL, &outputs), REQUEST, 101);
    inputs[0].name = NULL;
    graphene_run_options options = {0};
    graphene_cancel *cancel = NULL;
    fine(graphene_cancel_new(&cancel));
    options.cancel = cancel;
    options.deadline_ms = UINT64_MAX;
    fine(graphene_context_run(context, inputs, count, &options, &outputs));
    graphene_outputs *cancelled = (graphene_outputs *)&options;
    fine(graphene_cancel_set(cancel));
    expect(graphene_context_run(context, inputs, count, &options, &cancelled), CANCELLED, 401);
    if (cancelled != NULL)
        return 1;
    graphene_cancel_free(cancel);

    const graphene_tensor *tensor = NULL, *first = NULL;
    expect(graphene_outputs_find(outputs, "no such output", &tensor), REQUEST, 101);
    fine(graphene_outputs_tensors(outputs, &first, &number));
    fine(graphene_outputs_find(outputs, first->name, &tensor));
    if (tensor != first)
        return 1;

    /* Elements at an odd address are copied, and give the same. */
    char *moved = malloc(65);
    if (moved == NULL)
        return 1;
    memcpy(moved + 1, ids, 64);
    inputs[0].data = moved + 1;
    char *own = malloc(first->byte_len + 1);
    if (own == NULL)
        return 1;
    graphene_output_buffer buffers[2] = {{NULL, GRAPHENE_DTYPE_F32, own + 1, first->byte_len},
                                         {NULL, GRAPHENE_DTYPE_F32, own + 8, 8}};
    fine(graphene_context_run_into(context, inputs, count, buffers, 1, NULL));
    if (memcmp(own + 1, first->data, first->byte_len) != 0)
        return 1;
    expect(graphene_context_run_into(context, inputs, count, buffers, 2, NULL), MISUSE, 1006);
    buffers[0].data = moved;
    buffers[0].byte_len = 65;
    expect(graphene_context_run_into(context, inputs, count, buffers, 1, NULL), MISUSE, 1006);
    buffers[0].data = own;
    expect(graphene_context_run_into(context, inputs, count, buffers, 1, NULL), REQUEST, 106);
    buffers[0].data = NULL;
    expect(graphene_context_run_into(context, inputs, count, buffers, 1, NULL), MISUSE, 1001);

    /* What is made from a handle outlives it. */
    graphene_pool *pool = NULL;
    fine(graphene_pool_new(model, NULL, &pool));
    graphene_engine_free(engine);
    graphene_model_free(model);
    graphene_outputs *more = NULL;
    fine(graphene_pool_run(pool, inputs, count, NULL, &more));
    buffers[0].data = own;
    buffers[0].byte_len = first->byte_len;
    fine(graphene_pool_run_into(pool, inputs, count, buffers, 1, NULL));
    if (memcmp(own, first->data, first->byte_len) != 0)
        return 1;
    fine(graphene_context_run_into(context, inputs, count, buffers, 1, NULL));

    graphene_outputs_free(more);
    graphene_pool_free(pool);
    graphene_context_free(context);
    graphene_outputs_free(outputs);
    graphene_outputs_free(NULL);
    graphene_pool_free(NULL);
    graphene_context_free(NULL);
    graphene_model_free(NULL);
    graphene_engine_free(NULL);
    graphene_cancel_free(NULL);
    free(moved);
    free(own);
    printf("all refused\n");
    return 0;
}
