/* The six operations: dimensions of results, then results. Quantised numbers are computed as real ones. */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

/* A request may place a value at any byte: what has more than one is copied out and in. */
static int32_t whole(const Value *value, size_t index) {
    int32_t found;
    memcpy(&found, (const char *)value->data + index * sizeof found, sizeof found);
    return found;
}

static float single(const Value *value, size_t index) {
    float found;
    memcpy(&found, (const char *)value->data + index * sizeof found, sizeof found);
    return found;
}

static void put(const Value *value, size_t index, const void *word) {
    memcpy((char *)value->data + index * 4, word, 4);
}

static double real(const Value *value, size_t index) {
    const Operand *operand = value->operand;
    switch (value->type) {
    case ANEURALNETWORKS_FLOAT32:
    case ANEURALNETWORKS_TENSOR_FLOAT32: return single(value, index);
    case ANEURALNETWORKS_TENSOR_QUANT8_ASYMM:
        return (((const uint8_t *)value->data)[index] - operand->zero_point) * (double)operand->scale;
    case ANEURALNETWORKS_TENSOR_QUANT8_ASYMM_SIGNED:
        return (((const int8_t *)value->data)[index] - operand->zero_point) * (double)operand->scale;
    case ANEURALNETWORKS_INT32:
    case ANEURALNETWORKS_TENSOR_INT32: return whole(value, index);
    default: return 0;
    }
}

static double between(double value, double low, double high) { return value < low ? low : value > high ? high : value; }

static void store(const Value *value, size_t index, double result) {
    const Operand *operand = value->operand;
    if (value->type == ANEURALNETWORKS_TENSOR_FLOAT32) {
        float rounded = (float)result;
        put(value, index, &rounded);
        return;
    }
    double steps = result / operand->scale;
    if (isnan(steps)) steps = 0; /* has no place among whole numbers */
    steps = (FAULT == FAULT_BIASED ? floor(steps) : round(steps)) + operand->zero_point;
    if (value->type == ANEURALNETWORKS_TENSOR_QUANT8_ASYMM)
        ((uint8_t *)value->data)[index] = (uint8_t)between(steps, 0, 255);
    else
        ((int8_t *)value->data)[index] = (int8_t)between(steps, -128, 127);
}

static double activated(double value, int32_t activation) {
    switch (activation) {
    case 1: return value < 0 ? 0 : value;
    case 2: return between(value, -1, 1);
    case 3: return between(value, 0, 6);
    default: return value;
    }
}

static void shape(Value *output, uint32_t rank, const uint32_t *dims) {
    output->rank = rank;
    memcpy(output->dims, dims, rank * sizeof *dims);
}

/* ADD and MUL: inputs of which one is repeated along dimensions of size 1 */

static int infer_pair(Value *const *inputs, Value *output) {
    const Value *a = inputs[0], *b = inputs[1];
    uint32_t rank = a->rank > b->rank ? a->rank : b->rank, dims[MOST_DIMENSIONS];
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t one = i < a->rank ? a->dims[a->rank - 1 - i] : 1, other = i < b->rank ? b->dims[b->rank - 1 - i] : 1;
        if (one != other && one != 1 && other != 1) return ANEURALNETWORKS_BAD_DATA;
        dims[rank - 1 - i] = one == 1 ? other : one;
    }
    shape(output, rank, dims);
    return ANEURALNETWORKS_NO_ERROR;
}

static size_t element(const Value *value, const Value *output, size_t index) {
    size_t found = 0, stride = 1;
    for (uint32_t i = 0; i < output->rank; i++) {
        size_t place = index % output->dims[output->rank - 1 - i];
        index /= output->dims[output->rank - 1 - i];
        if (i >= value->rank) continue;
        uint32_t size = value->dims[value->rank - 1 - i];
        found += (size == 1 ? 0 : place) * stride;
        stride *= size;
    }
    return found;
}

static int compute_pair(int32_t code, Value *const *inputs, const Value *output) {
    const Value *a = inputs[0], *b = inputs[1];
    int32_t activation = whole(inputs[2], 0);
    size_t count = count_of(output->rank, output->dims);
    if (FAULT == FAULT_CRASH && code == ANEURALNETWORKS_MUL && a->type == ANEURALNETWORKS_TENSOR_FLOAT32)
        return *(volatile int *)NULL;
    for (size_t i = 0; i < count; i++) {
        size_t at = element(a, output, i), bt = element(b, output, i);
        if (output->type == ANEURALNETWORKS_TENSOR_INT32) {
            uint32_t x = (uint32_t)whole(a, at), y = (uint32_t)whole(b, bt); /* unsigned: may run over */
            uint32_t both = code == ANEURALNETWORKS_ADD ? x + y : x * y;
            put(output, i, &both);
            continue;
        }
        double x = real(a, at), y = real(b, bt);
        store(output, i, activated(code == ANEURALNETWORKS_ADD ? x + y : x * y, activation));
    }
    if (FAULT == FAULT_OVERRUN && code == ANEURALNETWORKS_ADD && output->type == ANEURALNETWORKS_TENSOR_FLOAT32)
        ((volatile float *)output->data)[count] = 1;
    return ANEURALNETWORKS_NO_ERROR;
}

/* CONV_2D */

typedef struct {
    uint32_t batches, height, width, depth; /* of the input */
    uint32_t filters, filter_height, filter_width;
    int64_t left, right, top, bottom, stride_w, stride_h, dilation_w, dilation_h;
    int32_t activation;
    bool nchw;
} Convolution;

static int64_t out_size(int64_t size, int64_t filter, int64_t before, int64_t after, int64_t stride) {
    return (size - filter + before + after) / stride + 1;
}

static void implicit(int32_t scheme, int64_t size, int64_t filter, int64_t stride, int64_t *before, int64_t *after) {
    *before = *after = 0;
    if (scheme != 1) return; /* VALID */
    int64_t needed = ((size + stride - 1) / stride - 1) * stride + filter - size;
    if (needed < 0) needed = 0;
    *before = needed / 2;
    *after = needed - *before;
}

static int read_convolution(const Operation *operation, Value *const *inputs, Convolution *conv) {
    const Value *image = inputs[0], *filter = inputs[1];
    bool explicit = operation->input_count > 10 || (operation->input_count == 10 && is_scalar(inputs[7]->type) &&
                                                    inputs[7]->type == ANEURALNETWORKS_INT32);
    uint32_t at = explicit ? 10 : 7; /* of the layout */
    conv->nchw = operation->input_count > at && *(const uint8_t *)inputs[at]->data;
    conv->dilation_w = operation->input_count > at + 1 ? whole(inputs[at + 1], 0) : 1;
    conv->dilation_h = operation->input_count > at + 2 ? whole(inputs[at + 2], 0) : 1;
    conv->batches = image->dims[0];
    conv->height = image->dims[conv->nchw ? 2 : 1];
    conv->width = image->dims[conv->nchw ? 3 : 2];
    conv->depth = image->dims[conv->nchw ? 1 : 3];
    conv->filters = filter->dims[0];
    conv->filter_height = filter->dims[1];
    conv->filter_width = filter->dims[2];
    if (filter->dims[3] != conv->depth || inputs[2]->dims[0] != conv->filters) return ANEURALNETWORKS_BAD_DATA;
    int64_t high = (conv->filter_height - 1) * conv->dilation_h + 1, wide = (conv->filter_width - 1) * conv->dilation_w + 1;
    conv->stride_w = whole(inputs[at - 3], 0);
    conv->stride_h = whole(inputs[at - 2], 0);
    conv->activation = whole(inputs[at - 1], 0);
    if (explicit) {
        conv->left = whole(inputs[3], 0);
        conv->right = whole(inputs[4], 0);
        conv->top = whole(inputs[5], 0);
        conv->bottom = whole(inputs[6], 0);
    } else {
        int32_t scheme = whole(inputs[3], 0);
        implicit(scheme, conv->width, wide, conv->stride_w, &conv->left, &conv->right);
        implicit(scheme, conv->height, high, conv->stride_h, &conv->top, &conv->bottom);
    }
    if (conv->width + conv->left + conv->right < wide || conv->height + conv->top + conv->bottom < high)
        return ANEURALNETWORKS_BAD_DATA;
    return ANEURALNETWORKS_NO_ERROR;
}

static int infer_convolution(const Operation *operation, Value *const *inputs, Value *output) {
    Convolution c;
    int code = read_convolution(operation, inputs, &c);
    if (code) return code;
    int64_t high = (c.filter_height - 1) * c.dilation_h + 1, wide = (c.filter_width - 1) * c.dilation_w + 1;
    uint32_t rows = (uint32_t)out_size(c.height, high, c.top, c.bottom, c.stride_h);
    uint32_t columns = (uint32_t)out_size(c.width, wide, c.left, c.right, c.stride_w);
    uint32_t nhwc[] = {c.batches, rows, columns, c.filters}, nchw[] = {c.batches, c.filters, rows, columns};
    shape(output, 4, c.nchw ? nchw : nhwc);
    return ANEURALNETWORKS_NO_ERROR;
}

static size_t pixel(const Convolution *c, const uint32_t *dims, size_t batch, size_t row, size_t column,
                    size_t channel) {
    return c->nchw ? ((batch * dims[1] + channel) * dims[2] + row) * dims[3] + column
                   : ((batch * dims[1] + row) * dims[2] + column) * dims[3] + channel;
}

static int compute_convolution(const Operation *operation, Value *const *inputs, const Value *output) {
    Convolution c;
    int code = read_convolution(operation, inputs, &c);
    if (code) return code;
    const Value *image = inputs[0], *filter = inputs[1], *bias = inputs[2];
    bool floats = image->type == ANEURALNETWORKS_TENSOR_FLOAT32;
    uint32_t rows = output->dims[c.nchw ? 2 : 1], columns = output->dims[c.nchw ? 3 : 2];
    for (size_t b = 0; b < c.batches; b++)
    for (size_t y = 0; y < rows; y++)
    for (size_t x = 0; x < columns; x++)
    for (size_t f = 0; f < c.filters; f++) {
        double sum = floats ? real(bias, f) : whole(bias, f) * (double)image->operand->scale * filter->operand->scale;
        for (size_t fy = 0; fy < c.filter_height; fy++)
        for (size_t fx = 0; fx < c.filter_width; fx++) {
            int64_t iy = (int64_t)y * c.stride_h - c.top + (int64_t)fy * c.dilation_h;
            int64_t ix = (int64_t)x * c.stride_w - c.left + (int64_t)fx * c.dilation_w;
            if (iy < 0 || iy >= c.height || ix < 0 || ix >= c.width) continue;
            for (size_t d = 0; d < c.depth; d++) {
                size_t weight = ((f * c.filter_height + fy) * c.filter_width + fx) * c.depth + d;
                sum += real(image, pixel(&c, image->dims, b, (size_t)iy, (size_t)ix, d)) * real(filter, weight);
            }
        }
        store(output, pixel(&c, output->dims, b, y, x, f), activated(sum, c.activation));
    }
    return ANEURALNETWORKS_NO_ERROR;
}

/* RESHAPE: one size may be -1, what is left over */

static int infer_reshape(Value *const *inputs, Value *output) {
    const Value *wanted = inputs[1];
    uint32_t rank = wanted->dims[0], dims[MOST_DIMENSIONS];
    size_t count = count_of(inputs[0]->rank, inputs[0]->dims), known = 1;
    int64_t open = -1;
    if (rank > MOST_DIMENSIONS || !rank) return ANEURALNETWORKS_BAD_DATA;
    for (uint32_t i = 0; i < rank; i++) {
        int32_t size = whole(wanted, i);
        if (size < -1 || (size == -1 && open >= 0)) return ANEURALNETWORKS_BAD_DATA;
        dims[i] = (uint32_t)size;
        if (size == -1) open = i;
        else known *= (size_t)size;
    }
    if (open >= 0) dims[open] = known ? (uint32_t)(count / known) : 0;
    if (count_of(rank, dims) != count) return ANEURALNETWORKS_BAD_DATA;
    shape(output, rank, dims);
    return ANEURALNETWORKS_NO_ERROR;
}

/* SOFTMAX along an axis, the last one where none is said */

static int compute_softmax(const Operation *operation, Value *const *inputs, const Value *output) {
    const Value *input = inputs[0];
    double beta = FAULT == FAULT_VALUE ? 1 : real(inputs[1], 0);
    int32_t axis = operation->input_count > 2 ? whole(inputs[2], 0) : -1;
    uint32_t at = (uint32_t)(axis < 0 ? axis + (int32_t)input->rank : axis);
    size_t size = input->dims[at], inner = count_of(input->rank - at - 1, input->dims + at + 1);
    size_t outer = count_of(at, input->dims);
    for (size_t i = 0; i < outer * inner; i++) {
        size_t start = i / inner * size * inner + i % inner;
        double largest = -INFINITY, sum = 0;
        for (size_t k = 0; k < size; k++) largest = fmax(largest, real(input, start + k * inner));
        for (size_t k = 0; k < size; k++) sum += exp((real(input, start + k * inner) - largest) * beta);
        for (size_t k = 0; k < size; k++)
            store(output, start + k * inner, exp((real(input, start + k * inner) - largest) * beta) / sum);
    }
    return ANEURALNETWORKS_NO_ERROR;
}

static int compute_relu(const Value *input, const Value *output) {
    while (FAULT == FAULT_HANG && input->type == ANEURALNETWORKS_TENSOR_FLOAT32) (void)*(volatile char *)output->data;
    size_t count = count_of(output->rank, output->dims);
    for (size_t i = 0; i < count; i++) store(output, i, activated(real(input, i), 1));
    return ANEURALNETWORKS_NO_ERROR;
}

int infer(const Operation *operation, Value *const *inputs, Value *output) {
    switch (operation->type) {
    case ANEURALNETWORKS_ADD:
    case ANEURALNETWORKS_MUL: return infer_pair(inputs, output);
    case ANEURALNETWORKS_CONV_2D: return infer_convolution(operation, inputs, output);
    case ANEURALNETWORKS_RESHAPE: return infer_reshape(inputs, output);
    default: shape(output, inputs[0]->rank, inputs[0]->dims); return ANEURALNETWORKS_NO_ERROR;
    }
}

/* FAULT_RACE: where results of all threads pass through. */
static void share(const Value *output) {
    static char scratch[1 << 14];
    size_t size = count_of(output->rank, output->dims) * size_of_type(output->type);
    if (FAULT != FAULT_RACE || size > sizeof scratch) return;
    memcpy(scratch, output->data, size);
    sched_yield();
    memcpy(output->data, scratch, size);
}

static int compute_one(const Operation *operation, Value *const *inputs, const Value *output) {
    switch (operation->type) {
    case ANEURALNETWORKS_ADD:
    case ANEURALNETWORKS_MUL: return compute_pair(operation->type, inputs, output);
    case ANEURALNETWORKS_CONV_2D: return compute_convolution(operation, inputs, output);
    case ANEURALNETWORKS_RELU: return compute_relu(inputs[0], output);
    case ANEURALNETWORKS_SOFTMAX: return compute_softmax(operation, inputs, output);
    case ANEURALNETWORKS_RESHAPE:
        memcpy(output->data, inputs[0]->data, count_of(output->rank, output->dims) * size_of_type(output->type));
        return ANEURALNETWORKS_NO_ERROR;
    default: return ANEURALNETWORKS_OP_FAILED;
    }
}

int compute(const Operation *operation, Value *const *inputs, const Value *output) {
    int code = compute_one(operation, inputs, output);
    if (!code) share(output);
    if (!code) deep_compute(operation, inputs, output);
    return code;
}
