/* Runs the operations of a model one after the other. */
#include <stdlib.h>
#include <string.h>

#include "native.h"

static size_t size_of(const Value *value) {
    return size_of_type(value->type) * (is_scalar(value->type) ? 1 : count_of(value->rank, value->dims));
}

static void bind_input(Value *value, const Binding *binding) {
    value->rank = binding->rank;
    memcpy(value->dims, binding->dims, sizeof value->dims);
    value->data = binding->buffer;
}

/* Whether what a result got fits what the model or the request says of it. */
static bool fits(const Value *value, uint32_t rank, const uint32_t *dims) {
    if (!rank) return true;
    if (rank != value->rank) return false;
    for (uint32_t i = 0; i < rank; i++)
        if (dims[i] && dims[i] != value->dims[i]) return false;
    return true;
}

/* A result goes where the request says, unless there is too little room or nobody asked for it. */
static int place(Value *value, Binding *binding) {
    size_t size = size_of(value);
    if (!fits(value, value->operand->rank, value->operand->dims)) return ANEURALNETWORKS_BAD_DATA;
    if (binding) {
        if (!fits(value, binding->rank, binding->dims)) return ANEURALNETWORKS_BAD_DATA;
        if (binding->own && binding->length != size) return ANEURALNETWORKS_OP_FAILED;
        binding->rank = value->rank;
        memcpy(binding->dims, value->dims, sizeof binding->dims);
        binding->short_of_room = !binding->omitted && binding->length < size;
        if (!binding->omitted && !binding->short_of_room) {
            value->data = binding->buffer;
            return ANEURALNETWORKS_NO_ERROR;
        }
    }
    value->data = malloc(size ? size : 1);
    value->own = true;
    return value->data ? ANEURALNETWORKS_NO_ERROR : ANEURALNETWORKS_OUT_OF_MEMORY;
}

static Binding *output_of(ANeuralNetworksExecution *execution, uint32_t operand) {
    const ANeuralNetworksModel *model = execution->compilation->model;
    for (uint32_t i = 0; i < model->output_count; i++)
        if (model->outputs[i] == operand) return &execution->outputs[i];
    return NULL;
}

static int run_operation(ANeuralNetworksExecution *execution, const Operation *operation, Value *values) {
    Value *inputs[MOST_INPUTS];
    for (uint32_t i = 0; i < operation->input_count; i++) {
        inputs[i] = &values[operation->inputs[i]];
        if (!inputs[i]->data) return ANEURALNETWORKS_OP_FAILED; /* left out, and needed */
    }
    Value *output = &values[operation->outputs[0]];
    int code = infer(operation, inputs, output);
    if (!code) code = place(output, output_of(execution, operation->outputs[0]));
    return code ? code : compute(operation, inputs, output);
}

static void start_values(ANeuralNetworksExecution *execution, Value *values) {
    const ANeuralNetworksModel *model = execution->compilation->model;
    for (uint32_t i = 0; i < model->operand_count; i++) {
        const Operand *operand = &model->operands[i];
        values[i] = (Value){.operand = operand, .type = operand->type, .rank = operand->rank, .data = operand->value};
        memcpy(values[i].dims, operand->dims, sizeof values[i].dims);
    }
    for (uint32_t i = 0; i < model->input_count; i++) bind_input(&values[model->inputs[i]], &execution->inputs[i]);
}

/* Memory of the library's own must hold something to be read, and holds nothing certain while it is written. */
static int open_buffers(ANeuralNetworksExecution *execution) {
    const ANeuralNetworksModel *model = execution->compilation->model;
    int code = ANEURALNETWORKS_NO_ERROR;
    for (uint32_t i = 0; i < model->output_count; i++)
        if (execution->outputs[i].own) execution->outputs[i].own->filled = false;
    for (uint32_t i = 0; i < model->input_count; i++)
        if (execution->inputs[i].own && !execution->inputs[i].own->filled) code = ANEURALNETWORKS_OP_FAILED;
    return code;
}

static int close_outputs(ANeuralNetworksExecution *execution) {
    int code = ANEURALNETWORKS_NO_ERROR;
    for (uint32_t i = 0; i < execution->compilation->model->output_count; i++) {
        if (execution->outputs[i].own) execution->outputs[i].own->filled = true;
        if (execution->outputs[i].short_of_room) code = ANEURALNETWORKS_OUTPUT_INSUFFICIENT_SIZE;
    }
    return code;
}

int run(ANeuralNetworksExecution *execution, uint64_t until) {
    const ANeuralNetworksModel *model = execution->compilation->model;
    uint64_t start = now();
    if (FAULT == FAULT_LEAK) memset(malloc(256 << 10), 1, 256 << 10);
    Value *values = calloc(model->operand_count - (FAULT == FAULT_HEAP), sizeof *values);
    if (!values) return ANEURALNETWORKS_OUT_OF_MEMORY;
    start_values(execution, values);
    int code = open_buffers(execution);
    for (uint32_t i = 0; i < model->operation_count && !code; i++) {
        if (until && now() >= until) code = ANEURALNETWORKS_MISSED_DEADLINE_PERSISTENT;
        else code = run_operation(execution, &model->operations[i], values);
    }
    if (!code) code = close_outputs(execution);
    for (uint32_t i = 0; i < model->operand_count; i++)
        if (values[i].own) free(values[i].data);
    free(values);
    deep_end(execution, code);
    execution->took = now() - start;
    return code;
}
