/* The rules of the six operations: number and types of operands, quantisation, and what can be told of dimensions. */
#include <math.h>
#include <string.h>

#include "native.h"

enum {
    F32 = ANEURALNETWORKS_TENSOR_FLOAT32,
    F16 = ANEURALNETWORKS_TENSOR_FLOAT16,
    I32 = ANEURALNETWORKS_TENSOR_INT32,
    Q8 = ANEURALNETWORKS_TENSOR_QUANT8_ASYMM,
    Q8S = ANEURALNETWORKS_TENSOR_QUANT8_ASYMM_SIGNED,
    Q8CH = ANEURALNETWORKS_TENSOR_QUANT8_SYMM_PER_CHANNEL,
};

static const Operand *in(const ANeuralNetworksModel *model, const Operation *operation, uint32_t index) {
    return &model->operands[operation->inputs[index]];
}

static const Operand *out(const ANeuralNetworksModel *model, const Operation *operation) {
    return &model->operands[operation->outputs[0]];
}

static bool is_one_of(int32_t type, const int32_t *types, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (types[i] == type) return true;
    return false;
}
#define ONE_OF(type, ...) is_one_of(type, (const int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* A constant scalar's value; `otherwise` where it is not known yet. */
static int32_t constant(const Operand *operand, int32_t otherwise) {
    if (operand->origin != CONSTANT) return otherwise;
    return operand->type == ANEURALNETWORKS_BOOL ? *(const uint8_t *)operand->value : *(const int32_t *)operand->value;
}

static bool is_between(const Operand *operand, int32_t low, int32_t high) {
    int32_t value = constant(operand, low);
    return value >= low && value <= high;
}

static bool same_quantisation(const Operand *a, const Operand *b) {
    return a->scale == b->scale && a->zero_point == b->zero_point;
}

/* Whether dimensions that two operands have in common agree, as far as they are known. */
static bool same_shape(const Operand *a, const Operand *b) {
    if (!a->rank || !b->rank) return true;
    if (a->rank != b->rank) return false;
    for (uint32_t i = 0; i < a->rank; i++)
        if (a->dims[i] && b->dims[i] && a->dims[i] != b->dims[i]) return false;
    return true;
}

static bool is_count(const Operand *operand, uint32_t at, uint32_t due) {
    return !operand->rank || !operand->dims[at] || !due || operand->dims[at] == due;
}

static bool pair(const ANeuralNetworksModel *model, const Operation *operation) {
    if (operation->input_count != 3) return false;
    const Operand *a = in(model, operation, 0), *b = in(model, operation, 1), *code = in(model, operation, 2);
    const Operand *result = out(model, operation);
    if (!ONE_OF(a->type, F32, F16, Q8, Q8S, I32) || b->type != a->type || result->type != a->type) return false;
    if (code->type != ANEURALNETWORKS_INT32 || !is_between(code, 0, a->type == I32 ? 0 : 3)) return false;
    if (a->rank > 4 || b->rank > 4 || result->rank > 4) return false;
    if (operation->type == ANEURALNETWORKS_MUL && is_quantised(a->type) && !(result->scale > a->scale * b->scale))
        return false;
    if (!a->rank || !b->rank) return true;
    uint32_t rank = a->rank > b->rank ? a->rank : b->rank;
    if (result->rank && result->rank != rank) return false;
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t one = i < a->rank ? a->dims[a->rank - 1 - i] : 1, other = i < b->rank ? b->dims[b->rank - 1 - i] : 1;
        if (one && other && one != other && one != 1 && other != 1) return false;
        uint32_t due = one == 1 ? other : other == 1 || one ? one : other;
        if (one && other && !is_count(result, rank - 1 - i, due)) return false;
    }
    return true;
}

static bool relu(const ANeuralNetworksModel *model, const Operation *operation) {
    if (operation->input_count != 1) return false;
    const Operand *input = in(model, operation, 0), *result = out(model, operation);
    if (!ONE_OF(input->type, F32, F16, Q8, Q8S) || result->type != input->type || input->rank > 4) return false;
    return same_quantisation(input, result) && same_shape(input, result);
}

static bool softmax(const ANeuralNetworksModel *model, const Operation *operation) {
    if (operation->input_count != 2 && operation->input_count != 3) return false;
    const Operand *input = in(model, operation, 0), *beta = in(model, operation, 1), *result = out(model, operation);
    if (!ONE_OF(input->type, F32, F16, Q8, Q8S) || result->type != input->type || input->rank > 4) return false;
    if (beta->type != (input->type == F16 ? ANEURALNETWORKS_FLOAT16 : ANEURALNETWORKS_FLOAT32)) return false;
    if (beta->origin == CONSTANT && beta->type == ANEURALNETWORKS_FLOAT32 && !(*(const float *)beta->value > 0))
        return false;
    if (beta->origin == CONSTANT && beta->type == ANEURALNETWORKS_FLOAT16) {
        uint16_t bits = *(const uint16_t *)beta->value; /* above 0, and a number */
        if (!(bits & 0x7fff) || bits & 0x8000 || bits > 0x7c00) return false;
    }
    if (operation->input_count == 3) {
        const Operand *axis = in(model, operation, 2);
        int32_t rank = (int32_t)input->rank;
        if (axis->type != ANEURALNETWORKS_INT32) return false;
        if (rank && !(axis->origin != CONSTANT || is_between(axis, -rank, rank - 1))) return false;
    }
    if (is_quantised(input->type) &&
        (result->scale != 1.f / 256 || result->zero_point != (input->type == Q8 ? 0 : -128)))
        return false;
    return same_shape(input, result);
}

static bool reshape(const ANeuralNetworksModel *model, const Operation *operation) {
    if (operation->input_count != 2) return false;
    const Operand *input = in(model, operation, 0), *wanted = in(model, operation, 1), *result = out(model, operation);
    if (!ONE_OF(input->type, F32, F16, Q8, Q8S, I32) || result->type != input->type) return false;
    if (input->rank > 4 || result->rank > 4 || wanted->type != I32 || wanted->rank > 1) return false;
    if (!same_quantisation(input, result)) return false;
    if (wanted->origin != CONSTANT || !wanted->length) return true;
    const int32_t *sizes = wanted->value;
    uint32_t rank = wanted->dims[0], open = 0;
    size_t known = 1, count = count_of(input->rank, input->dims);
    if (result->rank && result->rank != rank) return false;
    for (uint32_t i = 0; i < rank; i++) {
        if (sizes[i] < -1 || sizes[i] == 0) return false;
        if (sizes[i] == -1) open++;
        else known *= (size_t)sizes[i];
        if (sizes[i] > 0 && !is_count(result, i, (uint32_t)sizes[i])) return false;
    }
    if (open > 1) return false;
    if (is_known(input->rank, input->dims) && (open ? count % known : count != known)) return false;
    if (is_known(input->rank, input->dims) && is_known(result->rank, result->dims))
        return count_of(result->rank, result->dims) == count;
    return true;
}

static bool filters(const Operand *input, const Operand *filter, const Operand *bias) {
    if (is_quantised(input->type)) {
        if (filter->type != input->type && filter->type != Q8CH) return false;
        if (bias->type != I32 || bias->zero_point) return false;
        if (filter->type == Q8CH) return bias->scale == 0 && filter->channel_dim == 0;
        float due = input->scale * filter->scale;
        return bias->scale == due || fabsf(bias->scale - due) <= 1e-6f * fminf(bias->scale, due);
    }
    return filter->type == input->type && bias->type == input->type;
}

static bool convolution(const ANeuralNetworksModel *model, const Operation *operation) {
    uint32_t count = operation->input_count;
    if (count < 7 || count > 13 || count == 9 || count == 12) return false;
    const Operand *input = in(model, operation, 0), *filter = in(model, operation, 1), *bias = in(model, operation, 2);
    const Operand *result = out(model, operation);
    if (!ONE_OF(input->type, F32, F16, Q8, Q8S) || result->type != input->type) return false;
    if (!filters(input, filter, bias)) return false;
    bool ranks = ONE_OF((int32_t)input->rank, 0, 4) && ONE_OF((int32_t)filter->rank, 0, 4);
    if (!ranks || !ONE_OF((int32_t)bias->rank, 0, 1) || !ONE_OF((int32_t)result->rank, 0, 4)) return false;
    bool explicit = count > 10 || (count == 10 && in(model, operation, 7)->type == ANEURALNETWORKS_INT32);
    uint32_t at = explicit ? 10 : 7;
    for (uint32_t i = 3; i < at; i++)
        if (in(model, operation, i)->type != ANEURALNETWORKS_INT32) return false;
    if (count > at && in(model, operation, at)->type != ANEURALNETWORKS_BOOL) return false;
    for (uint32_t i = at + 1; i < count; i++)
        if (in(model, operation, i)->type != ANEURALNETWORKS_INT32 || !is_between(in(model, operation, i), 1, INT32_MAX))
            return false;
    if (count == at + 2) return false; /* dilations come in pairs */
    for (uint32_t i = 3; explicit && i < 7; i++)
        if (!is_between(in(model, operation, i), 0, INT32_MAX)) return false;
    if (!explicit && !is_between(in(model, operation, 3), 1, 2)) return false;
    if (!is_between(in(model, operation, at - 3), 1, INT32_MAX)) return false;
    if (!is_between(in(model, operation, at - 2), 1, INT32_MAX)) return false;
    if (!is_between(in(model, operation, at - 1), 0, 3)) return false;
    bool nchw = count > at && constant(in(model, operation, at), 0);
    uint32_t depth = input->rank ? input->dims[nchw ? 1 : 3] : 0, number = filter->rank ? filter->dims[0] : 0;
    if (!is_count(filter, 3, depth) || !is_count(bias, 0, number)) return false;
    return is_count(result, 0, input->rank ? input->dims[0] : 0) && is_count(result, nchw ? 1 : 3, number);
}

bool is_valid(const ANeuralNetworksModel *model, const Operation *operation) {
    deep_validate(model, operation);
    bool (*rules)(const ANeuralNetworksModel *, const Operation *);
    switch (operation->type) {
    case ANEURALNETWORKS_ADD:
    case ANEURALNETWORKS_MUL: rules = pair; break;
    case ANEURALNETWORKS_CONV_2D: rules = convolution; break;
    case ANEURALNETWORKS_RELU: rules = relu; break;
    case ANEURALNETWORKS_RESHAPE: rules = reshape; break;
    case ANEURALNETWORKS_SOFTMAX: rules = softmax; break;
    default: return true;
    }
    if (operation->output_count != 1) return false;
    for (uint32_t i = 0; i < operation->input_count; i++)
        if (in(model, operation, i)->origin == NO_VALUE) return false;
    return rules(model, operation);
}

bool is_supported(const ANeuralNetworksModel *model, const Operation *operation) {
    switch (operation->type) {
    case ANEURALNETWORKS_ADD:
    case ANEURALNETWORKS_MUL:
    case ANEURALNETWORKS_CONV_2D:
    case ANEURALNETWORKS_RELU:
    case ANEURALNETWORKS_RESHAPE:
    case ANEURALNETWORKS_SOFTMAX: break;
    default: return false;
    }
    return in(model, operation, 0)->type != F16 &&
           !(operation->type == ANEURALNETWORKS_CONV_2D && in(model, operation, 1)->type == Q8CH);
}
