"""Names and numbers of the .tflite format: operators, types of tensors, and the fields of their options.

Source: schema version 3 as it ships with LiteRT; the tests compare these tables with that module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

FILE_IDENTIFIER = b"TFL3"  # at byte 4
IDENTIFIER_AT = 4
SCHEMA_VERSION = 3
LARGEST_OLD_CODE = 127  # operator codes above it stand in a field of their own
NO_TENSOR = -1  # an optional input that is left out
LARGEST_RANK = 32

_OPERATORS = """
    ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
    FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION
    LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH
    CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
    BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
    BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM
    ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE
    TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK
    LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD
    RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N
    GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
    NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
    PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE
    HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
    ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU
    DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2
    UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE
    STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
    STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE
    STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM
    STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT
    STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE
    STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW
    STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR
    REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
"""
OPERATORS: tuple[str, ...] = tuple(_OPERATORS.split())  # by code

_TYPES = """
    FLOAT32 FLOAT16 INT32 UINT8 INT64 STRING BOOL INT16 COMPLEX64 INT8 FLOAT64 COMPLEX128 UINT64 RESOURCE VARIANT UINT32
    UINT16 INT4 BFLOAT16 INT2 UINT4 FLOAT8_E4M3FN FLOAT8_E5M2
"""
TYPES: tuple[str, ...] = tuple(_TYPES.split())  # of tensors, by code

DTYPES: Mapping[str, type[np.generic]] = {
    "FLOAT32": np.float32,
    "FLOAT16": np.float16,
    "FLOAT64": np.float64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "COMPLEX64": np.complex64,
    "COMPLEX128": np.complex128,
    "BOOL": np.bool_,
}

# Number of the table among all tables of options, then its fields in order: name, type in the notation of `struct`
# (`v` is a vector of 32-bit integers), and the default where it is not 0. A field without a name is of no interest.
_OPTIONS: Mapping[str, tuple[int, str]] = {
    "Conv2DOptions": (1, "padding:b stride_w:i stride_h:i activation:b dilation_w:i=1 dilation_h:i=1"),
    "DepthwiseConv2DOptions": (2, "padding:b stride_w:i stride_h:i _:i activation:b dilation_w:i=1 dilation_h:i=1"),
    "LSHProjectionOptions": (4, "type:b"),
    "Pool2DOptions": (5, "padding:b stride_w:i stride_h:i filter_w:i filter_h:i activation:b"),
    "SVDFOptions": (6, "rank:i activation:b"),
    "RNNOptions": (7, "activation:b"),
    "FullyConnectedOptions": (8, "activation:b weights_format:b keep_num_dims:?"),
    "SoftmaxOptions": (9, "beta:f"),
    "ConcatenationOptions": (10, "axis:i activation:b"),
    "AddOptions": (11, "activation:b"),
    "L2NormOptions": (12, "activation:b"),
    "LocalResponseNormalizationOptions": (13, "radius:i bias:f alpha:f beta:f"),
    "LSTMOptions": (14, "activation:b cell_clip:f proj_clip:f kernel_type:b"),
    "ResizeBilinearOptions": (15, "_:i _:i align_corners:? half_pixel_centers:?"),
    "ReshapeOptions": (17, "new_shape:v"),
    "SpaceToDepthOptions": (19, "block_size:i"),
    "MulOptions": (21, "activation:b"),
    "GatherOptions": (23, "axis:i batch_dims:i"),
    "ReducerOptions": (27, "keep_dims:?"),
    "SubOptions": (28, "activation:b"),
    "DivOptions": (29, "activation:b"),
    "SqueezeOptions": (30, "squeeze_dims:v"),
    "SequenceRNNOptions": (31, "time_major:? activation:b"),
    "StridedSliceOptions": (
        32,
        "begin_mask:i end_mask:i ellipsis_mask:i new_axis_mask:i shrink_axis_mask:i offset:?",
    ),
    "SplitOptions": (35, "num_splits:i"),
    "TransposeConvOptions": (49, "padding:b stride_w:i stride_h:i activation:b"),
    "OneHotOptions": (61, "axis:i"),
    "PackOptions": (59, "values_count:i axis:i"),
    "UnpackOptions": (64, "num:i axis:i"),
    "BidirectionalSequenceLSTMOptions": (
        69,
        "activation:b cell_clip:f proj_clip:f merge_outputs:? time_major:?=1",
    ),
    "BidirectionalSequenceRNNOptions": (70, "time_major:? activation:b merge_outputs:?"),
    "UnidirectionalSequenceLSTMOptions": (
        71,
        "activation:b cell_clip:f proj_clip:f time_major:? _:? diagonal_recurrent_tensors:?",
    ),
    "ResizeNearestNeighborOptions": (74, "align_corners:? half_pixel_centers:?"),
    "LeakyReluOptions": (75, "alpha:f"),
    "MirrorPadOptions": (77, "mode:b"),
    "IfOptions": (92, "then_subgraph:i else_subgraph:i"),
    "WhileOptions": (93, "cond_subgraph:i body_subgraph:i"),
    "DepthToSpaceOptions": (94, "block_size:i"),
    "BatchMatMulOptions": (101, "adj_x:? adj_y:?"),
    "RandomOptions": (114, "seed:q seed2:q"),
    "GeluOptions": (116, "approximate:?"),
}


@lru_cache(maxsize=len(_OPTIONS))
def options_table(name: str) -> tuple[int, tuple[tuple[str, int, str, float], ...]]:
    """The number of a table of options, and of each field name, number, type and default."""
    number, text = _OPTIONS[name]
    fields = []
    for place, field in enumerate(text.split()):
        key, _, rest = field.partition(":")
        form, _, default = rest.partition("=")
        if key != "_":
            fields.append((key, place, form, float(default or 0)))
    return number, tuple(fields)


def options_tables() -> tuple[str, ...]:
    """The names of all tables of options that are read."""
    return tuple(_OPTIONS)
