"""The numbers of the driver interface: operand types, operation codes, statuses and other enumerations.

Source: the NN HAL interface files 1.0 to 1.3 and AIDL v1 to v4. Nothing here depends on another module.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

CACHE_TOKEN_BYTES = 32
MAX_CACHE_FILES = 32
BASE_CODE_MAX = 0xFFFF  # operand and operation codes above it belong to extensions
LOOP_TIMEOUT_DEFAULT_NS = 2_000_000_000
LOOP_TIMEOUT_MAX_NS = 15_000_000_000
PREFERRED_ALIGNMENT = 64  # bytes; also the padding offered behind a buffer (AIDL)


class FeatureLevel(IntEnum):
    """Versions of the driver interface, oldest first: HIDL 1.0 to 1.3 are 1 to 4, AIDL v1 to v4 are 5 to 8."""

    FL1 = 1
    FL2 = 2
    FL3 = 3
    FL4 = 4
    FL5 = 5
    FL6 = 6
    FL7 = 7
    FL8 = 8

    @property
    def version(self) -> str:
        """The name in the field: `1.0` to `1.3`, then `FL5` to `FL8`."""
        return f"1.{self - 1}" if self <= FeatureLevel.FL4 else self.name


FL1, FL2, FL3, FL4, FL5, FL6, FL7, FL8 = FeatureLevel


class OperandType(IntEnum):
    """Type of an operand. Names without `TENSOR_` are scalars."""

    FLOAT32 = 0
    INT32 = 1
    UINT32 = 2
    TENSOR_FLOAT32 = 3
    TENSOR_INT32 = 4
    TENSOR_QUANT8_ASYMM = 5
    BOOL = 6
    TENSOR_QUANT16_SYMM = 7
    TENSOR_FLOAT16 = 8
    TENSOR_BOOL8 = 9
    FLOAT16 = 10
    TENSOR_QUANT8_SYMM_PER_CHANNEL = 11
    TENSOR_QUANT16_ASYMM = 12
    TENSOR_QUANT8_SYMM = 13
    TENSOR_QUANT8_ASYMM_SIGNED = 14
    SUBGRAPH = 15
    OEM = 10000
    TENSOR_OEM_BYTE = 10001


@dataclass(frozen=True)
class OperandTypeInfo:
    """What is true of an operand type, whatever the operand.

    Attributes:
        dtype: NumPy type of one element; bytes for OEM and subgraph operands.
        size: bytes of one element.
        tensor: whether the operand has dimensions.
        since: first level that knows the type.
        zero_points: smallest and largest legal zero point, or None where the field must be 0.
        scaled: whether a scale above 0 is required.
        short: the name in case ids.
    """

    dtype: np.dtype[Any]
    size: int
    tensor: bool
    since: FeatureLevel
    zero_points: tuple[int, int] | None
    scaled: bool
    short: str


def _info(
    dtype: type[Any],
    since: FeatureLevel,
    short: str,
    *,
    tensor: bool = True,
    zero_points: tuple[int, int] | None = None,
    scaled: bool = False,
    size: int | None = None,
) -> OperandTypeInfo:
    kind = np.dtype(dtype)
    return OperandTypeInfo(kind, kind.itemsize if size is None else size, tensor, since, zero_points, scaled, short)


OPERAND_TYPES: dict[OperandType, OperandTypeInfo] = {
    OperandType.FLOAT32: _info(np.float32, FL1, "sf32", tensor=False),
    OperandType.INT32: _info(np.int32, FL1, "si32", tensor=False),
    OperandType.UINT32: _info(np.uint32, FL1, "su32", tensor=False),
    OperandType.TENSOR_FLOAT32: _info(np.float32, FL1, "f32"),
    OperandType.TENSOR_INT32: _info(np.int32, FL1, "i32"),
    OperandType.TENSOR_QUANT8_ASYMM: _info(np.uint8, FL1, "q8", zero_points=(0, 255), scaled=True),
    OperandType.BOOL: _info(np.uint8, FL3, "sb8", tensor=False),
    OperandType.TENSOR_QUANT16_SYMM: _info(np.int16, FL3, "q16", scaled=True),
    OperandType.TENSOR_FLOAT16: _info(np.float16, FL3, "f16"),
    OperandType.TENSOR_BOOL8: _info(np.uint8, FL3, "b8"),
    OperandType.FLOAT16: _info(np.float16, FL3, "sf16", tensor=False),
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: _info(np.int8, FL3, "q8ch"),
    OperandType.TENSOR_QUANT16_ASYMM: _info(np.uint16, FL3, "q16a", zero_points=(0, 65535), scaled=True),
    OperandType.TENSOR_QUANT8_SYMM: _info(np.int8, FL3, "q8y", scaled=True),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: _info(np.int8, FL4, "q8s", zero_points=(-128, 127), scaled=True),
    OperandType.SUBGRAPH: _info(np.uint8, FL4, "graph", tensor=False, size=0),
    OperandType.OEM: _info(np.uint8, FL1, "oem", tensor=False, size=0),
    OperandType.TENSOR_OEM_BYTE: _info(np.uint8, FL1, "oemb"),
}


def info(operand_type: int) -> OperandTypeInfo:
    """What is known of a built-in operand type.

    Raises:
        KeyError: the code is an extension's or unknown.
    """
    try:
        return OPERAND_TYPES[operand_type]  # type: ignore[index]  # codes as plain integers find their type too
    except KeyError:
        raise KeyError(f"operand type {operand_type} is not a built-in type") from None


def is_extension(code: int) -> bool:
    """Whether an operand or operation code belongs to a vendor extension (its high half is the prefix)."""
    return code > BASE_CODE_MAX or code < 0


class OperationType(IntEnum):
    """Code of a built-in operation."""

    ADD = 0
    AVERAGE_POOL_2D = 1
    CONCATENATION = 2
    CONV_2D = 3
    DEPTHWISE_CONV_2D = 4
    DEPTH_TO_SPACE = 5
    DEQUANTIZE = 6
    EMBEDDING_LOOKUP = 7
    FLOOR = 8
    FULLY_CONNECTED = 9
    HASHTABLE_LOOKUP = 10
    L2_NORMALIZATION = 11
    L2_POOL_2D = 12
    LOCAL_RESPONSE_NORMALIZATION = 13
    LOGISTIC = 14
    LSH_PROJECTION = 15
    LSTM = 16
    MAX_POOL_2D = 17
    MUL = 18
    RELU = 19
    RELU1 = 20
    RELU6 = 21
    RESHAPE = 22
    RESIZE_BILINEAR = 23
    RNN = 24
    SOFTMAX = 25
    SPACE_TO_DEPTH = 26
    SVDF = 27
    TANH = 28
    BATCH_TO_SPACE_ND = 29
    DIV = 30
    MEAN = 31
    PAD = 32
    SPACE_TO_BATCH_ND = 33
    SQUEEZE = 34
    STRIDED_SLICE = 35
    SUB = 36
    TRANSPOSE = 37
    ABS = 38
    ARGMAX = 39
    ARGMIN = 40
    AXIS_ALIGNED_BBOX_TRANSFORM = 41
    BIDIRECTIONAL_SEQUENCE_LSTM = 42
    BIDIRECTIONAL_SEQUENCE_RNN = 43
    BOX_WITH_NMS_LIMIT = 44
    CAST = 45
    CHANNEL_SHUFFLE = 46
    DETECTION_POSTPROCESSING = 47
    EQUAL = 48
    EXP = 49
    EXPAND_DIMS = 50
    GATHER = 51
    GENERATE_PROPOSALS = 52
    GREATER = 53
    GREATER_EQUAL = 54
    GROUPED_CONV_2D = 55
    HEATMAP_MAX_KEYPOINT = 56
    INSTANCE_NORMALIZATION = 57
    LESS = 58
    LESS_EQUAL = 59
    LOG = 60
    LOGICAL_AND = 61
    LOGICAL_NOT = 62
    LOGICAL_OR = 63
    LOG_SOFTMAX = 64
    MAXIMUM = 65
    MINIMUM = 66
    NEG = 67
    NOT_EQUAL = 68
    PAD_V2 = 69
    POW = 70
    PRELU = 71
    QUANTIZE = 72
    QUANTIZED_16BIT_LSTM = 73
    RANDOM_MULTINOMIAL = 74
    REDUCE_ALL = 75
    REDUCE_ANY = 76
    REDUCE_MAX = 77
    REDUCE_MIN = 78
    REDUCE_PROD = 79
    REDUCE_SUM = 80
    ROI_ALIGN = 81
    ROI_POOLING = 82
    RSQRT = 83
    SELECT = 84
    SIN = 85
    SLICE = 86
    SPLIT = 87
    SQRT = 88
    TILE = 89
    TOPK_V2 = 90
    TRANSPOSE_CONV_2D = 91
    UNIDIRECTIONAL_SEQUENCE_LSTM = 92
    UNIDIRECTIONAL_SEQUENCE_RNN = 93
    RESIZE_NEAREST_NEIGHBOR = 94
    QUANTIZED_LSTM = 95
    IF = 96
    WHILE = 97
    ELU = 98
    HARD_SWISH = 99
    FILL = 100
    RANK = 101
    BATCH_MATMUL = 102
    PACK = 103
    MIRROR_PAD = 104
    REVERSE = 105
    OEM_OPERATION = 10000


LARGEST_OPERATION: dict[FeatureLevel, int] = {
    FL1: 28, FL2: 37, FL3: 94, FL4: 101, FL5: 101, FL6: 103, FL7: 105, FL8: 105,
}  # fmt: skip
LARGEST_OPERAND_TYPE: dict[FeatureLevel, int] = {
    FL1: 5, FL2: 5, FL3: 13, FL4: 15, FL5: 15, FL6: 15, FL7: 15, FL8: 15,
}  # fmt: skip


class OperandLifeTime(IntEnum):
    """Where an operand's value comes from. `SUBGRAPH_*` were called `MODEL_*` before 1.3."""

    TEMPORARY_VARIABLE = 0
    SUBGRAPH_INPUT = 1
    SUBGRAPH_OUTPUT = 2
    CONSTANT_COPY = 3
    CONSTANT_REFERENCE = 4
    NO_VALUE = 5
    SUBGRAPH = 6


class ErrorStatus(IntEnum):
    """What a driver answers. 5 to 8 exist from level 4 on."""

    NONE = 0
    DEVICE_UNAVAILABLE = 1
    GENERAL_FAILURE = 2
    OUTPUT_INSUFFICIENT_SIZE = 3
    INVALID_ARGUMENT = 4
    MISSED_DEADLINE_TRANSIENT = 5
    MISSED_DEADLINE_PERSISTENT = 6
    RESOURCE_EXHAUSTED_TRANSIENT = 7
    RESOURCE_EXHAUSTED_PERSISTENT = 8


class DeviceStatus(IntEnum):
    """State of a device; HIDL only."""

    AVAILABLE = 0
    BUSY = 1
    OFFLINE = 2
    UNKNOWN = 3


class DeviceType(IntEnum):
    """Kind of a device; from level 3 on."""

    OTHER = 1
    CPU = 2
    GPU = 3
    ACCELERATOR = 4


class ExecutionPreference(IntEnum):
    """What preparation should aim for; from level 2 on."""

    LOW_POWER = 0
    FAST_SINGLE_ANSWER = 1
    SUSTAINED_SPEED = 2


class Priority(IntEnum):
    """Weight of a prepared model among those of one client; from level 4 on."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


class FusedActivation(IntEnum):
    """Function applied to an operation's result before it is stored."""

    NONE = 0
    RELU = 1
    RELU1 = 2
    RELU6 = 3


class PaddingScheme(IntEnum):
    """Implicit padding. 0 is treated like VALID by the public implementation; the documents know 1 and 2."""

    SAME = 1
    VALID = 2


class LstmActivation(IntEnum):
    """Activation of the cell in the LSTM family."""

    NONE = 0
    RELU = 1
    RELU6 = 3
    TANH = 4
    SIGMOID = 6


class LshProjectionType(IntEnum):
    """Result form of LSH_PROJECTION."""

    SPARSE_DEPRECATED = 1
    DENSE = 2
    SPARSE = 3


class ExecutionMode(IntEnum):
    """The ways to run a prepared model."""

    SYNCHRONOUS = 0
    ASYNCHRONOUS = 1
    BURST = 2
    FENCED = 3
    REUSABLE = 4
