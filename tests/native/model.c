/* Models: operands, operations, constants, and whether they fit together. */
#include <stdlib.h>
#include <string.h>

#include "native.h"

static const struct {
    uint8_t size;
    bool tensor, scaled;
    int32_t low, high; /* of the zero point */
} TYPES[] = {
    [ANEURALNETWORKS_FLOAT32] = {4, false, false, 0, 0},
    [ANEURALNETWORKS_INT32] = {4, false, false, 0, 0},
    [ANEURALNETWORKS_UINT32] = {4, false, false, 0, 0},
    [ANEURALNETWORKS_TENSOR_FLOAT32] = {4, true, false, 0, 0},
    [ANEURALNETWORKS_TENSOR_INT32] = {4, true, false, 0, 0},
    [ANEURALNETWORKS_TENSOR_QUANT8_ASYMM] = {1, true, true, 0, 255},
    [ANEURALNETWORKS_BOOL] = {1, false, false, 0, 0},
    [ANEURALNETWORKS_TENSOR_QUANT16_SYMM] = {2, true, true, 0, 0},
    [ANEURALNETWORKS_TENSOR_FLOAT16] = {2, true, false, 0, 0},
    [ANEURALNETWORKS_TENSOR_BOOL8] = {1, true, false, 0, 0},
    [ANEURALNETWORKS_FLOAT16] = {2, false, false, 0, 0},
    [ANEURALNETWORKS_TENSOR_QUANT8_SYMM_PER_CHANNEL] = {1, true, false, 0, 0},
    [ANEURALNETWORKS_TENSOR_QUANT16_ASYMM] = {2, true, true, 0, 65535},
    [ANEURALNETWORKS_TENSOR_QUANT8_SYMM] = {1, true, true, 0, 0},
    [ANEURALNETWORKS_TENSOR_QUANT8_ASYMM_SIGNED] = {1, true, true, -128, 127},
    [ANEURALNETWORKS_MODEL] = {0, false, false, 0, 0},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof TYPES[0], LAST_OPERATION = 105 };

size_t size_of_type(int32_t type) { return TYPES[type].size; }
bool is_scalar(int32_t type) { return !TYPES[type].tensor; }
bool is_quantised(int32_t type) { return TYPES[type].scaled; }

size_t count_of(uint32_t rank, const uint32_t *dims) {
    size_t count = 1;
    for (uint32_t i = 0; i < rank; i++) count *= dims[i];
    return count;
}

bool is_known(uint32_t rank, const uint32_t *dims) {
    for (uint32_t i = 0; i < rank; i++)
        if (!dims[i]) return false;
    return rank > 0;
}

static int fail(ANeuralNetworksModel *model) {
    model->bad = true;
    return ANEURALNETWORKS_BAD_DATA;
}

static bool overflows(const ANeuralNetworksOperandType *type) {
    uint64_t size = size_of_type(type->type);
    for (uint32_t i = 0; i < type->dimensionCount; i++) {
        if (!type->dimensions[i]) return false;
        size *= type->dimensions[i];
        if (size > UINT32_MAX) return true;
    }
    return false;
}

static bool is_type(const ANeuralNetworksOperandType *type) {
    if (type->type < 0 || type->type >= TYPE_COUNT) return false;
    if (type->dimensionCount && !type->dimensions) return false;
    if (is_scalar(type->type)) return !type->dimensionCount && type->scale == 0 && !type->zeroPoint;
    if (TYPES[type->type].scaled ? !(type->scale > 0) : type->scale < 0 || type->scale != type->scale) return false;
    if (!TYPES[type->type].scaled && type->type != ANEURALNETWORKS_TENSOR_INT32 && type->scale != 0) return false;
    if (type->zeroPoint < TYPES[type->type].low || type->zeroPoint > TYPES[type->type].high) return false;
    return !overflows(type);
}

int ANeuralNetworksModel_create(ANeuralNetworksModel **model) {
    if (!model) return ANEURALNETWORKS_UNEXPECTED_NULL;
    *model = calloc(1, sizeof **model);
    return *model ? ANEURALNETWORKS_NO_ERROR : ANEURALNETWORKS_OUT_OF_MEMORY;
}

void ANeuralNetworksModel_free(ANeuralNetworksModel *model) {
    if (!model) return;
    for (uint32_t i = 0; i < model->operand_count; i++) {
        free(model->operands[i].value);
        free(model->operands[i].scales);
    }
    for (uint32_t i = 0; i < model->operation_count; i++) {
        free(model->operations[i].inputs);
        free(model->operations[i].outputs);
    }
    free(model->operands);
    free(model->operations);
    free(model->inputs);
    free(model->outputs);
    free(model);
}

int ANeuralNetworksModel_addOperand(ANeuralNetworksModel *model, const ANeuralNetworksOperandType *type) {
    if (!model || !type) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (model->finished) return ANEURALNETWORKS_BAD_STATE;
    if (!is_type(type)) return fail(model);
    if (type->dimensionCount > MOST_DIMENSIONS) return ANEURALNETWORKS_OP_FAILED; /* valid, but not for us */
    Operand *grown = realloc(model->operands, (model->operand_count + 1) * sizeof *grown);
    if (!grown) return ANEURALNETWORKS_OUT_OF_MEMORY;
    model->operands = grown;
    Operand *operand = &grown[model->operand_count++];
    memset(operand, 0, sizeof *operand);
    operand->type = type->type;
    operand->rank = type->dimensionCount;
    if (type->dimensionCount) memcpy(operand->dims, type->dimensions, type->dimensionCount * sizeof(uint32_t));
    operand->scale = type->scale;
    operand->zero_point = type->zeroPoint;
    return ANEURALNETWORKS_NO_ERROR;
}

static Operand *operand_at(ANeuralNetworksModel *model, int32_t index) {
    return index >= 0 && (uint32_t)index < model->operand_count ? &model->operands[index] : NULL;
}

int ANeuralNetworksModel_setOperandValue(ANeuralNetworksModel *model, int32_t index, const void *buffer,
                                         size_t length) {
    if (!model) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (model->finished) return ANEURALNETWORKS_BAD_STATE;
    Operand *operand = operand_at(model, index);
    if (!operand || operand->origin != TEMPORARY || (!buffer && length)) return fail(model);
    if (!buffer) {
        operand->origin = NO_VALUE;
        return ANEURALNETWORKS_NO_ERROR;
    }
    if (!is_scalar(operand->type) && !is_known(operand->rank, operand->dims)) return fail(model);
    if (length != size_of_type(operand->type) * count_of(operand->rank, operand->dims)) return fail(model);
    operand->value = malloc(length ? length : 1);
    if (!operand->value) return ANEURALNETWORKS_OUT_OF_MEMORY;
    memcpy(operand->value, buffer, length);
    operand->length = length;
    operand->origin = CONSTANT;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksModel_setOperandValueFromMemory(ANeuralNetworksModel *model, int32_t index,
                                                   const ANeuralNetworksMemory *memory, size_t offset, size_t length) {
    if (!model || !memory) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (memory->own || offset > memory->size || length > memory->size - offset) return fail(model);
    return ANeuralNetworksModel_setOperandValue(model, index, memory->data + offset, length);
}

int ANeuralNetworksModel_setOperandValueFromModel(ANeuralNetworksModel *model, int32_t index,
                                                  const ANeuralNetworksModel *value) {
    if (!model || !value) return ANEURALNETWORKS_UNEXPECTED_NULL;
    Operand *operand = operand_at(model, index);
    if (!operand || operand->type != ANEURALNETWORKS_MODEL || !value->finished) return fail(model);
    operand->origin = GRAPH;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksModel_setOperandSymmPerChannelQuantParams(
    ANeuralNetworksModel *model, int32_t index, const ANeuralNetworksSymmPerChannelQuantParams *channelQuant) {
    if (!model || !channelQuant || !channelQuant->scales) return ANEURALNETWORKS_UNEXPECTED_NULL;
    Operand *operand = operand_at(model, index);
    if (!operand || operand->type != ANEURALNETWORKS_TENSOR_QUANT8_SYMM_PER_CHANNEL) return fail(model);
    if (channelQuant->channelDim >= operand->rank || !operand->dims[channelQuant->channelDim]) return fail(model);
    if (channelQuant->scaleCount != operand->dims[channelQuant->channelDim]) return fail(model);
    for (uint32_t i = 0; i < channelQuant->scaleCount; i++)
        if (!(channelQuant->scales[i] > 0)) return fail(model);
    free(operand->scales);
    operand->scales = malloc(channelQuant->scaleCount * sizeof(float));
    if (!operand->scales) return ANEURALNETWORKS_OUT_OF_MEMORY;
    memcpy(operand->scales, channelQuant->scales, channelQuant->scaleCount * sizeof(float));
    operand->channel_dim = channelQuant->channelDim;
    operand->channels = channelQuant->scaleCount;
    return ANEURALNETWORKS_NO_ERROR;
}

static uint32_t *indexes(const ANeuralNetworksModel *model, uint32_t count, const uint32_t *given) {
    for (uint32_t i = 0; i < count; i++)
        if (given[i] >= model->operand_count && !deep_index(model, given[i])) return NULL;
    uint32_t *copy = calloc(count ? count : 1, sizeof *copy);
    if (copy && count) memcpy(copy, given, count * sizeof *copy);
    return copy;
}

int ANeuralNetworksModel_addOperation(ANeuralNetworksModel *model, ANeuralNetworksOperationType type,
                                      uint32_t inputCount, const uint32_t *inputs, uint32_t outputCount,
                                      const uint32_t *outputs) {
    if (!model || (inputCount && !inputs) || (outputCount && !outputs)) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (model->finished) return ANEURALNETWORKS_BAD_STATE;
    if (type < 0 || type > LAST_OPERATION || !outputCount) return fail(model);
    uint32_t *in = indexes(model, inputCount, inputs), *out = indexes(model, outputCount, outputs);
    Operation *grown = in && out ? realloc(model->operations, (model->operation_count + 1) * sizeof *grown) : NULL;
    if (!grown) {
        free(in);
        free(out);
        return fail(model);
    }
    model->operations = grown;
    uint32_t place = model->operation_count++;
    model->operations[place] = (Operation){type, inputCount, outputCount, in, out, place};
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksModel_identifyInputsAndOutputs(ANeuralNetworksModel *model, uint32_t inputCount,
                                                  const uint32_t *inputs, uint32_t outputCount,
                                                  const uint32_t *outputs) {
    if (!model || (inputCount && !inputs) || (outputCount && !outputs)) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (model->finished || model->inputs) return ANEURALNETWORKS_BAD_STATE;
    uint32_t *in = indexes(model, inputCount, inputs), *out = indexes(model, outputCount, outputs);
    model->inputs = in;
    model->outputs = out;
    if (!in || !out || !outputCount) return fail(model);
    model->input_count = inputCount;
    model->output_count = outputCount;
    for (uint32_t i = 0; i < inputCount + outputCount; i++) {
        Operand *operand = &model->operands[i < inputCount ? in[i] : out[i - inputCount]];
        if (operand->origin != TEMPORARY) return fail(model); /* a constant, or named twice */
        operand->origin = i < inputCount ? INPUT : OUTPUT;
    }
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksModel_relaxComputationFloat32toFloat16(ANeuralNetworksModel *model, bool allow) {
    if (!model) return ANEURALNETWORKS_UNEXPECTED_NULL;
    model->relaxed = allow;
    return ANEURALNETWORKS_NO_ERROR;
}

/* Puts the operations in an order in which each finds its inputs; false where there is none. */
static bool sort(ANeuralNetworksModel *model) {
    bool *there = calloc(model->operand_count ? model->operand_count : 1, 1);
    Operation *sorted = calloc(model->operation_count ? model->operation_count : 1, sizeof *sorted);
    bool *used = calloc(model->operation_count ? model->operation_count : 1, 1);
    uint32_t placed = 0;
    bool good = there && sorted && used;
    for (uint32_t i = 0; good && i < model->operand_count; i++) {
        Origin origin = model->operands[i].origin;
        there[i] = origin != TEMPORARY && origin != OUTPUT;
    }
    for (bool more = good; more;) {
        more = false;
        for (uint32_t n = 0; n < model->operation_count; n++) {
            const Operation *operation = &model->operations[n];
            bool ready = !used[n];
            for (uint32_t i = 0; ready && i < operation->input_count; i++) ready = there[operation->inputs[i]];
            if (!ready) continue;
            for (uint32_t i = 0; i < operation->output_count; i++) {
                if (there[operation->outputs[i]]) good = false; /* written twice, or nothing to be written */
                there[operation->outputs[i]] = true;
            }
            used[n] = more = true;
            sorted[placed++] = *operation;
        }
    }
    good = good && placed == model->operation_count && placed > 0;
    for (uint32_t i = 0; good && i < model->operand_count; i++) good = there[i]; /* somebody writes each */
    if (good) memcpy(model->operations, sorted, placed * sizeof *sorted);
    free(there);
    free(sorted);
    free(used);
    return good;
}

int ANeuralNetworksModel_finish(ANeuralNetworksModel *model) {
    if (!model) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (model->finished) return ANEURALNETWORKS_BAD_STATE;
    if (model->bad || !model->outputs || !sort(model)) return ANEURALNETWORKS_BAD_DATA;
    for (uint32_t i = 0; i < model->operand_count; i++) {
        const Operand *operand = &model->operands[i];
        bool per_channel = operand->type == ANEURALNETWORKS_TENSOR_QUANT8_SYMM_PER_CHANNEL;
        if (per_channel && operand->origin != NO_VALUE && !operand->scales) return ANEURALNETWORKS_BAD_DATA;
    }
    for (uint32_t i = 0; i < model->operation_count; i++)
        if (!is_valid(model, &model->operations[i])) return ANEURALNETWORKS_BAD_DATA;
    model->finished = true;
    return ANEURALNETWORKS_NO_ERROR;
}

int ANeuralNetworksModel_getSupportedOperationsForDevices(const ANeuralNetworksModel *model,
                                                          const ANeuralNetworksDevice *const *devices,
                                                          uint32_t numDevices, bool *supportedOps) {
    if (!model || !devices || !supportedOps || !numDevices) return ANEURALNETWORKS_UNEXPECTED_NULL;
    if (!model->finished) return ANEURALNETWORKS_BAD_STATE;
    for (uint32_t i = 0; i < model->operation_count; i++)
        supportedOps[model->operations[i].place] = is_supported(model, &model->operations[i]);
    return ANEURALNETWORKS_NO_ERROR;
}
