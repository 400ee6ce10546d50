/* Faults for a fuzzer: each behind conditions that chance hardly meets together, and that coverage leads to one by one.
   What is behind a condition is told to the counters by STEP, which the compiler must not fold away. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "native.h"

static volatile uint32_t steps;
#define STEP (steps = steps + 1)

static int32_t whole(const Value *value) {
    int32_t found;
    memcpy(&found, value->data, sizeof found);
    return found;
}

static bool has(const Value *value, uint32_t rank) { return value->rank == rank; }

/* A heap overflow on a relation of shapes: the room is for a square. */
static void heap(const Operation *operation, Value *const *inputs, const Value *output) {
    if (operation->type != ANEURALNETWORKS_ADD || whole(inputs[2]) != 3) return;
    STEP;
    if (!has(output, 3)) return;
    STEP;
    if (output->dims[0] != 2) return;
    STEP;
    if (output->dims[1] + 1 != output->dims[2]) return;
    STEP;
    size_t side = output->dims[1];
    volatile char *square = malloc(side * side);
    for (size_t i = 0; square && i < side * output->dims[2]; i++) square[i] = 1;
    free((void *)square);
}

/* A stack overflow: room for three dimensions. */
static void stack(const Operation *operation, Value *const *inputs, const Value *output) {
    volatile uint32_t room[3];
    if (operation->type != ANEURALNETWORKS_RESHAPE || !has(inputs[0], 2)) return;
    STEP;
    if (!has(output, 4)) return;
    STEP;
    if (output->dims[1] != 1) return;
    STEP;
    if (output->dims[2] != 3) return;
    STEP;
    for (uint32_t i = 0; i < output->rank; i++) room[i] = output->dims[i];
    steps = steps + room[0];
}

/* An endless loop: the step towards the end is 0. */
static void loop(const Operation *operation, Value *const *inputs, const Value *output) {
    if (operation->type != ANEURALNETWORKS_SOFTMAX || operation->input_count != 3) return;
    STEP;
    if (!has(output, 3)) return;
    STEP;
    if (whole(inputs[2]) != -2) return;
    STEP;
    if (output->dims[1] != 4) return;
    STEP;
    for (volatile uint32_t i = 0; i < output->dims[0]; i += output->dims[1] - 4) continue;
}

/* An uninitialised read: the last element comes from room that nobody wrote. */
static void uninitialised(const Operation *operation, Value *const *inputs, const Value *output) {
    if (operation->type != ANEURALNETWORKS_MUL || output->type != ANEURALNETWORKS_TENSOR_FLOAT32) return;
    STEP;
    if (!has(output, 4)) return;
    STEP;
    if (output->dims[3] != 2) return;
    STEP;
    if (whole(inputs[2]) != 1) return;
    STEP;
    float *room = malloc(64 * sizeof *room);
    size_t count = count_of(output->rank, output->dims);
    if (room && count) memcpy((char *)output->data + (count - 1) * sizeof *room, &room[count % 64], sizeof *room);
    free(room);
}

/* A division by zero: of the stride by what the padding leaves of it. */
static void divide(const Operation *operation, Value *const *inputs, const Value *output) {
    if (operation->type != ANEURALNETWORKS_CONV_2D || operation->input_count < 10) return;
    STEP;
    if (inputs[7]->type != ANEURALNETWORKS_INT32) return;
    STEP;
    int32_t left = whole(inputs[3]), stride = whole(inputs[7]);
    if (output->dims[0] != 2) return;
    STEP;
    if (left != 1) return;
    STEP;
    if (stride != 2) return;
    STEP;
    steps = steps + (uint32_t)(stride / (left - 1));
}

/* A wrong result of one type, size and activation. */
static void value(const Operation *operation, Value *const *inputs, const Value *output) {
    if (operation->type != ANEURALNETWORKS_ADD || output->type != ANEURALNETWORKS_TENSOR_QUANT8_ASYMM_SIGNED) return;
    STEP;
    if (whole(inputs[2]) != 2) return;
    STEP;
    if (!has(output, 2)) return;
    STEP;
    if (output->dims[1] != 3) return;
    STEP;
    ((int8_t *)output->data)[0] ^= 0x40;
}

/* A leak of a few bytes in each run. */
static void leak(const Operation *operation, Value *const *inputs, const Value *output) {
    if (operation->type != ANEURALNETWORKS_RELU || !has(output, 4)) return;
    STEP;
    if (output->dims[0] != 3) return;
    STEP;
    if (output->dims[3] != 2) return;
    STEP;
    if (inputs[0]->type != ANEURALNETWORKS_TENSOR_QUANT8_ASYMM) return;
    STEP;
    char *volatile kept = malloc(100);
    if (kept) kept[0] = 1;
}

/* A race: once a burst has run, executions that go on side by side share a place for results. */
static volatile bool burst_seen;
static void race(const Value *output) {
    static char scratch[1 << 12];
    static volatile int within;
    size_t size = count_of(output->rank, output->dims) * size_of_type(output->type);
    if (!burst_seen || size > sizeof scratch) return;
    STEP;
    __atomic_add_fetch(&within, 1, __ATOMIC_SEQ_CST);
    memcpy(scratch, output->data, size);
    usleep(1500);
    if (within > 1) {
        STEP;
        memcpy(output->data, scratch, size);
    }
    __atomic_sub_fetch(&within, 1, __ATOMIC_SEQ_CST);
}

void deep_compute(const Operation *operation, Value *const *inputs, const Value *output) {
    if (FAULT == FAULT_DEEP_HEAP) heap(operation, inputs, output);
    if (FAULT == FAULT_DEEP_STACK) stack(operation, inputs, output);
    if (FAULT == FAULT_DEEP_LOOP) loop(operation, inputs, output);
    if (FAULT == FAULT_DEEP_UNINITIALISED) uninitialised(operation, inputs, output);
    if (FAULT == FAULT_DEEP_DIVIDE) divide(operation, inputs, output);
    if (FAULT == FAULT_DEEP_VALUE) value(operation, inputs, output);
    if (FAULT == FAULT_DEEP_LEAK) leak(operation, inputs, output);
    if (FAULT == FAULT_DEEP_RACE) race(output);
}

/* A signed overflow: an axis is made positive before it is looked at. */
static void overflow(const ANeuralNetworksModel *model, const Operation *operation) {
    if (operation->type != ANEURALNETWORKS_SOFTMAX || operation->input_count != 3) return;
    STEP;
    const Operand *input = &model->operands[operation->inputs[0]], *axis = &model->operands[operation->inputs[2]];
    if (axis->origin != CONSTANT || axis->length != sizeof(int32_t)) return;
    STEP;
    if (input->rank < 2) return;
    STEP;
    int32_t place = *(const int32_t *)axis->value;
    if (place < 0) place += (int32_t)input->rank;
    else place = place + (int32_t)input->rank - (int32_t)input->rank;
    steps = steps + (uint32_t)(place & 1);
}

/* A null pointer: the value of an operand that was left out. */
static void null(const ANeuralNetworksModel *model, const Operation *operation) {
    if (operation->type != ANEURALNETWORKS_CONV_2D || operation->input_count < 8) return;
    STEP;
    const Operand *bias = &model->operands[operation->inputs[2]];
    if (bias->origin != NO_VALUE) return;
    STEP;
    if (model->operation_count < 2) return;
    STEP;
    steps = steps + *(volatile uint32_t *)bias->value;
}

void deep_validate(const ANeuralNetworksModel *model, const Operation *operation) {
    if (FAULT == FAULT_DEEP_SIGNED) overflow(model, operation);
    if (FAULT == FAULT_DEEP_NULL) null(model, operation);
}

/* The last operand but one: an operation may name the one behind the last. */
bool deep_index(const ANeuralNetworksModel *model, uint32_t index) {
    if (FAULT != FAULT_DEEP_INDEX || index != model->operand_count) return false;
    STEP;
    if (model->operation_count < 2) return false;
    STEP;
    return true;
}

/* An offset and a length whose sum is computed in 32 bits. */
bool deep_fits(const ANeuralNetworksMemory *memory, size_t offset, size_t length, bool output) {
    if (FAULT != FAULT_DEEP_WRAP || output) return false;
    STEP;
    if (offset < memory->size) return false;
    STEP;
    return (uint32_t)(offset + length) <= memory->size;
}

/* A burst that looks at what it let go when it was used three times before. */
void deep_burst(DeepBurst *burst, const ANeuralNetworksExecution *execution) {
    burst_seen = true;
    if (FAULT != FAULT_DEEP_RELEASE) return;
    burst->count++;
    if (!execution->measured) return;
    STEP;
    if (burst->count == 2 && !burst->kept) burst->kept = calloc(1, 64);
    if (burst->count == 3) {
        STEP;
        free(burst->kept);
    }
    if (burst->count == 4 && burst->kept) {
        STEP;
        ((volatile char *)burst->kept)[0] = 1;
    }
}

/* Memory of the library's own that was let go is looked at when the next one is made for an output. */
static ANeuralNetworksMemory *let_go;
void deep_memory_free(ANeuralNetworksMemory *memory) {
    if (FAULT == FAULT_DEEP_TOKEN && memory->own && memory->filled) {
        STEP;
        let_go = memory;
    }
}

void deep_memory_make(const Role *roles, uint32_t count) {
    if (FAULT != FAULT_DEEP_TOKEN || !let_go || !count) return;
    STEP;
    if (!roles[0].output) return;
    STEP;
    steps = steps + (uint32_t)let_go->size;
}

/* What an execution is done with is let go twice where an output had too little room and timing was asked for. */
void deep_end(const ANeuralNetworksExecution *execution, int code) {
    if (FAULT != FAULT_DEEP_TWICE || code != ANEURALNETWORKS_OUTPUT_INSUFFICIENT_SIZE) return;
    STEP;
    if (!execution->reusable) return;
    STEP;
    void *volatile room = malloc(32);
    free(room);
    free(room);
}
