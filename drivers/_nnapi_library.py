"""A shared library with the NNAPI C interface: its functions with their types, and what its result codes mean.

Source of names, numbers and signatures: the public headers of the interface, NeuralNetworks.h and that of support
libraries, whose table of functions has the order of `TABLE`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from nnhal.errors import DriverError, UsageError
from nnhal.types import ErrorStatus

PREFIX = "ANeuralNetworks"
TABLE_FUNCTION = "ANeuralNetworks_getSLDriverImpl"
TABLE_LEVEL = 31  # the first level that support libraries have


class OperandTypeStruct(ctypes.Structure):
    """Type, dimensions and quantisation of an operand."""

    _fields_ = (
        ("type", c_int32),
        ("dimension_count", c_uint32),
        ("dimensions", POINTER(c_uint32)),
        ("scale", c_float),
        ("zero_point", c_int32),
    )


class ChannelQuantStruct(ctypes.Structure):
    """Scales of a per-channel operand."""

    _fields_ = (("channel_dim", c_uint32), ("scale_count", c_uint32), ("scales", POINTER(c_float)))


_OUT = POINTER(c_void_p)
_TYPE = POINTER(OperandTypeStruct)
_INDEXES = POINTER(c_uint32)
# Arguments of the functions, without the front part of their names; all give a result code but those below.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Burst_create": (c_void_p, _OUT),
    "Burst_free": (c_void_p,),
    "Compilation_createForDevices": (c_void_p, _OUT, c_uint32, _OUT),
    "Compilation_finish": (c_void_p,),
    "Compilation_free": (c_void_p,),
    "Compilation_getPreferredMemoryAlignmentForInput": (c_void_p, c_uint32, POINTER(c_uint32)),
    "Compilation_getPreferredMemoryAlignmentForOutput": (c_void_p, c_uint32, POINTER(c_uint32)),
    "Compilation_getPreferredMemoryPaddingForInput": (c_void_p, c_uint32, POINTER(c_uint32)),
    "Compilation_getPreferredMemoryPaddingForOutput": (c_void_p, c_uint32, POINTER(c_uint32)),
    "Compilation_setCaching": (c_void_p, c_char_p, c_char_p),
    "Compilation_setPreference": (c_void_p, c_int32),
    "Compilation_setPriority": (c_void_p, c_int),
    "Compilation_setTimeout": (c_void_p, c_uint64),
    "Device_getExtensionSupport": (c_void_p, c_char_p, POINTER(c_bool)),
    "Device_getFeatureLevel": (c_void_p, POINTER(c_int64)),
    "Device_getName": (c_void_p, POINTER(c_char_p)),
    "Device_getType": (c_void_p, POINTER(c_int32)),
    "Device_getVersion": (c_void_p, POINTER(c_char_p)),
    "Device_wait": (c_void_p,),
    "Event_createFromSyncFenceFd": (c_int, _OUT),
    "Event_free": (c_void_p,),
    "Event_getSyncFenceFd": (c_void_p, POINTER(c_int)),
    "Event_wait": (c_void_p,),
    "Execution_burstCompute": (c_void_p, c_void_p),
    "Execution_compute": (c_void_p,),
    "Execution_create": (c_void_p, _OUT),
    "Execution_enableInputAndOutputPadding": (c_void_p, c_bool),
    "Execution_free": (c_void_p,),
    "Execution_getDuration": (c_void_p, c_int32, POINTER(c_uint64)),
    "Execution_getOutputOperandDimensions": (c_void_p, c_int32, POINTER(c_uint32)),
    "Execution_getOutputOperandRank": (c_void_p, c_int32, POINTER(c_uint32)),
    "Execution_setInput": (c_void_p, c_int32, _TYPE, c_void_p, c_size_t),
    "Execution_setInputFromMemory": (c_void_p, c_int32, _TYPE, c_void_p, c_size_t, c_size_t),
    "Execution_setLoopTimeout": (c_void_p, c_uint64),
    "Execution_setMeasureTiming": (c_void_p, c_bool),
    "Execution_setOutput": (c_void_p, c_int32, _TYPE, c_void_p, c_size_t),
    "Execution_setOutputFromMemory": (c_void_p, c_int32, _TYPE, c_void_p, c_size_t, c_size_t),
    "Execution_setReusable": (c_void_p, c_bool),
    "Execution_setTimeout": (c_void_p, c_uint64),
    "Execution_startComputeWithDependencies": (c_void_p, _OUT, c_uint32, c_uint64, _OUT),
    "MemoryDesc_addInputRole": (c_void_p, c_void_p, c_uint32, c_float),
    "MemoryDesc_addOutputRole": (c_void_p, c_void_p, c_uint32, c_float),
    "MemoryDesc_create": (_OUT,),
    "MemoryDesc_finish": (c_void_p,),
    "MemoryDesc_free": (c_void_p,),
    "MemoryDesc_setDimensions": (c_void_p, c_uint32, _INDEXES),
    "Memory_copy": (c_void_p, c_void_p),
    "Memory_createFromAHardwareBuffer": (c_void_p, _OUT),
    "Memory_createFromDesc": (c_void_p, _OUT),
    "Memory_createFromFd": (c_size_t, c_int, c_int, c_size_t, _OUT),
    "Memory_free": (c_void_p,),
    "Model_addOperand": (c_void_p, _TYPE),
    "Model_addOperation": (c_void_p, c_int32, c_uint32, _INDEXES, c_uint32, _INDEXES),
    "Model_create": (_OUT,),
    "Model_finish": (c_void_p,),
    "Model_free": (c_void_p,),
    "Model_getExtensionOperandType": (c_void_p, c_char_p, ctypes.c_uint16, POINTER(c_int32)),
    "Model_getExtensionOperationType": (c_void_p, c_char_p, ctypes.c_uint16, POINTER(c_int32)),
    "Model_getSupportedOperationsForDevices": (c_void_p, _OUT, c_uint32, POINTER(c_bool)),
    "Model_identifyInputsAndOutputs": (c_void_p, c_uint32, _INDEXES, c_uint32, _INDEXES),
    "Model_relaxComputationFloat32toFloat16": (c_void_p, c_bool),
    "Model_setOperandExtensionData": (c_void_p, c_int32, c_void_p, c_size_t),
    "Model_setOperandSymmPerChannelQuantParams": (c_void_p, c_int32, POINTER(ChannelQuantStruct)),
    "Model_setOperandValue": (c_void_p, c_int32, c_void_p, c_size_t),
    "Model_setOperandValueFromMemory": (c_void_p, c_int32, c_void_p, c_size_t, c_size_t),
    "Model_setOperandValueFromModel": (c_void_p, c_int32, c_void_p),
    "_getDefaultLoopTimeout": (),
    "_getDevice": (c_uint32, _OUT),
    "_getDeviceCount": (POINTER(c_uint32),),
}
TABLE = tuple(_ARGUMENTS)  # the beginning of a support library's table, behind its level
_ARGUMENTS["Execution_startCompute"] = (c_void_p, _OUT)  # no support library has it
_ANSWERS: dict[str, Any] = {"_getDefaultLoopTimeout": c_uint64}
ASYNCHRONOUS = ("Execution_startCompute", "Event_wait", "Event_free")
FENCED = ("Execution_startComputeWithDependencies", "Event_createFromSyncFenceFd", "Event_wait", "Event_free")
BURST = ("Burst_create", "Burst_free", "Execution_burstCompute")
REUSABLE = ("Execution_setReusable",)
BUFFERS = (
    "MemoryDesc_create", "MemoryDesc_addInputRole", "MemoryDesc_addOutputRole", "MemoryDesc_setDimensions",
    "MemoryDesc_finish", "MemoryDesc_free", "Memory_createFromDesc", "Memory_createFromFd", "Memory_copy",
    "Memory_free",
)  # fmt: skip
NEEDED = (
    "_getDeviceCount", "_getDevice", "Device_getName", "Device_getType", "Device_getVersion", "Device_getFeatureLevel",
    "Model_create", "Model_free", "Model_addOperand", "Model_setOperandValue", "Model_addOperation",
    "Model_identifyInputsAndOutputs", "Model_finish", "Model_getSupportedOperationsForDevices",
    "Compilation_createForDevices", "Compilation_free", "Compilation_finish",
    "Execution_create", "Execution_free", "Execution_setInput", "Execution_setOutput", "Execution_compute",
)  # fmt: skip

CODES = (
    "NO_ERROR", "OUT_OF_MEMORY", "INCOMPLETE", "UNEXPECTED_NULL", "BAD_DATA", "OP_FAILED", "BAD_STATE", "UNMAPPABLE",
    "OUTPUT_INSUFFICIENT_SIZE", "UNAVAILABLE_DEVICE", "MISSED_DEADLINE_TRANSIENT", "MISSED_DEADLINE_PERSISTENT",
    "RESOURCE_EXHAUSTED_TRANSIENT", "RESOURCE_EXHAUSTED_PERSISTENT", "DEAD_OBJECT",
)  # fmt: skip
STATUSES = {
    "OUT_OF_MEMORY": ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
    "UNEXPECTED_NULL": ErrorStatus.INVALID_ARGUMENT,
    "BAD_DATA": ErrorStatus.INVALID_ARGUMENT,
    "OUTPUT_INSUFFICIENT_SIZE": ErrorStatus.OUTPUT_INSUFFICIENT_SIZE,
    "UNAVAILABLE_DEVICE": ErrorStatus.DEVICE_UNAVAILABLE,
    "MISSED_DEADLINE_TRANSIENT": ErrorStatus.MISSED_DEADLINE_TRANSIENT,
    "MISSED_DEADLINE_PERSISTENT": ErrorStatus.MISSED_DEADLINE_PERSISTENT,
    "RESOURCE_EXHAUSTED_TRANSIENT": ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
    "RESOURCE_EXHAUSTED_PERSISTENT": ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT,
    "DEAD_OBJECT": ErrorStatus.DEVICE_UNAVAILABLE,
}  # all others are GENERAL_FAILURE


class Library:
    """The functions of a library, whichever way it offers them.

    Args:
        path: of the shared library.

    Raises:
        UsageError: it cannot be loaded, or lacks what every driver needs; one sentence says what and how to mend it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._functions: dict[str, Callable[..., Any]] = {}
        library = _open(path)
        if hasattr(library, TABLE_FUNCTION):
            self._read_table(getattr(library, TABLE_FUNCTION))
        else:
            for name, arguments in _ARGUMENTS.items():
                function = getattr(library, PREFIX + name, None)
                if function is not None:
                    function.argtypes, function.restype = arguments, _answer(name)
                    self._functions[name] = function
        missing = [PREFIX + name for name in NEEDED if name not in self._functions]
        if len(missing) == len(NEEDED):
            raise UsageError(
                f"driver library {path} exports neither {TABLE_FUNCTION} nor {PREFIX}* functions; "
                "give a library with the NNAPI C interface"
            )
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UsageError(
                f"driver library {path} lacks {missing[0]}{more}; export every function that a driver needs"
            )

    def _read_table(self, give: Any) -> None:
        give.restype = c_void_p
        address = give()
        if not address:
            raise UsageError(f"driver library {self.path}: {TABLE_FUNCTION} gives no table; it must give one")
        level = c_int64.from_address(address).value
        if level < TABLE_LEVEL:
            raise UsageError(
                f"driver library {self.path}: the table of {TABLE_FUNCTION} is of level {level}; "
                f"{TABLE_LEVEL} or higher is needed"
            )
        start = address + ctypes.sizeof(c_int64)
        pointers = (c_void_p * len(TABLE)).from_address(start)
        for name, pointer in zip(TABLE, pointers, strict=True):
            if pointer:
                self._functions[name] = ctypes.CFUNCTYPE(_answer(name), *_ARGUMENTS[name])(pointer)

    def has(self, *names: str) -> bool:
        """Whether the library has all these functions."""
        return all(name in self._functions for name in names)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function.

        Raises:
            DriverError: it answered with another result code than NO_ERROR.
            RuntimeError: it answered with what is no result code: the driver's fault.
        """
        check(name, self.code(name, *arguments))

    def code(self, name: str, *arguments: Any) -> int:
        """Calls a function and gives what it answered; GENERAL_FAILURE is raised where the library does not have it."""
        function = self._functions.get(name)
        if function is None:
            raise DriverError(ErrorStatus.GENERAL_FAILURE, f"the library lacks {PREFIX}{name}")
        return int(function(*arguments))

    def make(self, name: str, *arguments: Any) -> int:
        """Calls a function whose last argument is where it puts what it makes, and gives the address of that.

        Raises:
            DriverError: see `call`.
            RuntimeError: see `call`, or it made nothing.
        """
        made = c_void_p()
        self.call(name, *arguments, ctypes.byref(made))
        if not made.value:
            raise RuntimeError(f"{PREFIX}{name} answered NO_ERROR and gave a null pointer")
        return made.value

    def free(self, name: str, address: int) -> None:
        """Calls a function that frees something; nothing happens where there is nothing."""
        if address and name in self._functions:
            self._functions[name](address)


def _answer(name: str) -> Any:
    return None if name.endswith("_free") else _ANSWERS.get(name, c_int)


def check(name: str, code: int) -> None:
    """Raises what a result code means; see `Library.call`."""
    if code == 0:
        return
    if not 0 < code < len(CODES):
        raise RuntimeError(f"{PREFIX}{name} answered {code}, which is no result code")
    word = CODES[code]
    raise DriverError(STATUSES.get(word, ErrorStatus.GENERAL_FAILURE), f"{PREFIX}{name} answered {word}")


def _open(path: str) -> ctypes.CDLL:
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"driver library {path} does not exist; give the path of a shared library")
    try:
        return ctypes.CDLL(str(file.resolve()))
    except OSError as error:
        raise UsageError(f"driver library {path} cannot be loaded: {_why(str(error), str(file.resolve()))}") from None


# What the loader says, and the same in words that name the mend.
_REASONS = (
    (r"invalid ELF header|file too short|only ET_DYN|not a dynamic", "it is no shared library; build one with -shared"),
    (
        r"undefined symbol: ([^\s,]+)",
        r"it needs the symbol \1; link it with the library that has it",
    ),
    (r"([^\s:]+): cannot open shared object file", r"it needs \1, which is not found; set LD_LIBRARY_PATH"),
)


def _why(text: str, path: str) -> str:
    """Why the loader does not take a file."""
    machine = _machine(path)
    if machine is not None:
        return machine
    words = text.removeprefix(f"{path}: ")
    for pattern, told in _REASONS:
        found = re.search(pattern, words)
        if found:
            return found.expand(told)
    return words


_MACHINES = {
    3: "x86", 8: "MIPS", 20: "PowerPC", 21: "PowerPC", 40: "Arm", 62: "x86-64", 183: "64-bit Arm", 243: "RISC-V",
}  # fmt: skip


def _machine(path: str) -> str | None:
    """A sentence about a library that is for another machine; None for one that is for this one, or is none."""
    head, mine = _head(path), _head("/proc/self/exe")
    if len(head) < _HEAD or head[:4] != b"\x7fELF" or (head[4] == mine[4] and head[18:] == mine[18:]):
        return None
    code = int.from_bytes(head[18:], "little" if head[5] == 1 else "big")
    return f"it is built for {_MACHINES.get(code, f'machine {code}')}; build it for this machine"


_HEAD = 20  # bytes of an ELF file up to the machine that it is for


def _head(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(_HEAD)
