"""Any shared library with the NNAPI C interface as a driver: `--driver=path/to/lib.so`, or `nnapi,library=PATH`.

What the library exports decides what the driver offers; docs/writing-a-native-driver.md tells how to write one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_bool, c_char_p, c_int32, c_int64, c_uint32, c_void_p
from typing import Any

from drivers import _nnapi_cache as cache
from drivers._nnapi_buffers import NativeBuffers
from drivers._nnapi_library import ASYNCHRONOUS, BUFFERS, BURST, FENCED, PREFIX, REUSABLE, Library
from drivers._nnapi_model import NativeModel
from drivers._nnapi_prepared import NativePreparedModel
from drivers._nnapi_request import remaining
from drivers._nnapi_rules import refuse_unsaid
from nnhal.device import (
    DEFAULT_COMPILATION,
    Buffer,
    BufferDesc,
    BufferRole,
    CacheFilesNeeded,
    CompilationConfig,
    Device,
    PreparedModel,
    Traits,
)
from nnhal.errors import DriverError, UsageError, invalid
from nnhal.model import Model
from nnhal.types import (
    CACHE_TOKEN_BYTES,
    FL4,
    FL8,
    DeviceType,
    ErrorStatus,
    ExecutionMode,
    FeatureLevel,
    Priority,
    is_extension,
)
from nnhal.validate import validate_compilation

LEVELS = {27: 1, 28: 2, 29: 3, 30: 4, 31: 5, 1000006: 6, 1000007: 7, 1000008: 8}
PRIORITIES = {Priority.LOW: 90, Priority.MEDIUM: 100, Priority.HIGH: 110}
MODES = {
    ExecutionMode.ASYNCHRONOUS: ASYNCHRONOUS,
    ExecutionMode.BURST: BURST,
    ExecutionMode.FENCED: FENCED,
    ExecutionMode.REUSABLE: REUSABLE,
}
MOST_DEVICES = 4096  # a larger number is no answer
UNKNOWN_TYPE = 0
VALIDATION = ("library", "suite")
SWITCH = {"on": True, "off": False}


class NNAPI(Device):
    """A device of a library.

    Args:
        library: path of the shared library.
        device: name or number of the device; the first one when empty.
        validation: who checks models and requests: `library`, or `suite` for a library that leaves it to its caller.
        caching: `on` says that the library keeps compilations in the directory that it is given.

    Raises:
        UsageError: the library cannot be used, or an option is wrong.
    """

    def __init__(self, library: str = "", device: str = "", validation: str = "library", caching: str = "off") -> None:
        if not library:
            raise UsageError("nnapi: no library is named; write --driver=path/to/lib.so")
        if validation not in VALIDATION:
            raise UsageError(f"nnapi: validation={validation} is unknown; give one of {', '.join(VALIDATION)}")
        if caching not in SWITCH:
            raise UsageError(f"nnapi: caching={caching} is unknown; give on or off")
        self._library = Library(library)
        self._trusting = validation == "suite"
        self._caching = SWITCH[caching]
        self._buffers = NativeBuffers(self._library)
        self._nonsense: Exception | None = None
        try:
            self._address, self._name = self._choose(device)
            self.feature_level = self._level()
        except (DriverError, RuntimeError) as error:
            self._nonsense = error  # the library's fault, which each question tells again
        modes = {mode for mode, functions in MODES.items() if self._library.has(*functions)}
        self.traits = Traits(
            execution_modes=frozenset(modes | {ExecutionMode.SYNCHRONOUS}),
            caching=self._caching,
            buffers=self._library.has(*BUFFERS),
            validates=not self._trusting,
        )

    # ---- devices

    def _choose(self, wanted: str) -> tuple[int, str]:
        """Address and name of the device that is asked for."""
        count = c_uint32()
        self._library.call("_getDeviceCount", ctypes.byref(count))
        if count.value > MOST_DEVICES:
            raise RuntimeError(f"{PREFIX}_getDeviceCount gave {count.value} devices")
        if not count.value:
            raise UsageError(f"driver library {self._library.path} has no device; it must give one at least")
        addresses = [self._library.make("_getDevice", number) for number in range(count.value)]
        names = [self._text("Device_getName", address) for address in addresses]
        if not wanted:
            return addresses[0], names[0]
        if wanted in names:
            return addresses[names.index(wanted)], wanted
        if wanted.isdecimal() and int(wanted) < len(names):
            return addresses[int(wanted)], names[int(wanted)]
        raise UsageError(
            f"driver library {self._library.path} has no device {wanted!r}; it has {', '.join(map(repr, names))}"
        )

    @property
    def _device(self) -> int:
        """Address of the device.

        Raises:
            DriverError: the library failed to give one; or RuntimeError: it gave nonsense.
        """
        if self._nonsense is not None:
            raise self._nonsense
        return self._address

    def _text(self, name: str, address: int) -> str:
        found = c_char_p()
        self._library.call(name, address, ctypes.byref(found))
        if found.value is None:
            raise RuntimeError(f"{PREFIX}{name} gave a null pointer")
        return found.value.decode(errors="replace")

    def _level(self) -> FeatureLevel:
        found = c_int64()
        self._library.call("Device_getFeatureLevel", self._device, ctypes.byref(found))
        if found.value in LEVELS:
            return FeatureLevel(LEVELS[found.value])
        if found.value > max(LEVELS):
            return FL8  # newer ones are a superset
        raise RuntimeError(f"{PREFIX}Device_getFeatureLevel gave {found.value}, which is no level")

    def get_type(self) -> DeviceType:
        found = c_int32()
        self._library.call("Device_getType", self._device, ctypes.byref(found))
        return DeviceType.OTHER if found.value == UNKNOWN_TYPE else DeviceType(found.value)

    def get_version_string(self) -> str:
        version = self._text("Device_getVersion", self._device)
        return f"{self._name} {version}"

    def get_number_of_cache_files_needed(self) -> CacheFilesNeeded:
        return cache.FILES if self._caching else CacheFilesNeeded()

    # ---- models

    def get_supported_operations(self, model: Model) -> list[bool]:
        refuse_unsaid(model, self.feature_level, all_rules=self._trusting)
        if not self._knows(model):
            return [False] * len(model.main.operations)
        native = NativeModel(self._library, model)
        try:
            supported = (c_bool * len(model.main.operations))()
            name = "Model_getSupportedOperationsForDevices"
            self._library.call(name, native.address, self._devices(), 1, supported)
            return list(supported)
        finally:
            native.close()

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        refuse_unsaid(model, self.feature_level, all_rules=self._trusting)
        if self._trusting:
            validate_compilation(config, self.feature_level)
        elif config.deadline is not None and config.deadline < 0:
            raise invalid(f"the deadline of {config.deadline} ns is negative")
        if not self._knows(model):
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "the device does not have the model's extension")
        native = NativeModel(self._library, model)
        if not config.model_cache and not config.data_cache:
            return self._compiled(native, config)
        if len(config.cache_token) != CACHE_TOKEN_BYTES:
            native.close()
            raise invalid(f"the cache token has {len(config.cache_token)} bytes, {CACHE_TOKEN_BYTES} are due")
        with cache.directory() as files:
            prepared = self._compiled(native, config, str(files))
            cache.save(model, files, config.cache_token, config.model_cache, config.data_cache)
            return prepared

    def prepare_model_from_cache(
        self,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
        deadline: int | None = None,
    ) -> PreparedModel:
        if not self._caching:
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "compilation caching is not supported")
        with cache.directory() as files:
            model = cache.load(files, token, model_cache, data_cache)
            config = CompilationConfig(deadline=deadline, cache_token=token)
            return self._compiled(NativeModel(self._library, model), config, str(files))

    def _compiled(self, native: NativeModel, config: CompilationConfig, files: str = "") -> NativePreparedModel:
        """A compilation of a model, which it takes over."""
        library, address = self._library, 0
        try:
            address = library.make("Compilation_createForDevices", native.address, self._devices(), 1)
            if library.has("Compilation_setPreference"):
                library.call("Compilation_setPreference", address, int(config.preference))
            if self.feature_level >= FL4 and library.has("Compilation_setPriority"):
                library.call("Compilation_setPriority", address, PRIORITIES.get(config.priority, int(config.priority)))
            if config.deadline is not None and library.has("Compilation_setTimeout"):
                library.call("Compilation_setTimeout", address, remaining(config.deadline))
            if files and self._caching:
                library.call("Compilation_setCaching", address, files.encode(), bytes(config.cache_token))
            library.call("Compilation_finish", address)
        except BaseException:
            library.free("Compilation_free", address)
            native.close()
            raise
        return NativePreparedModel(
            library, native, address, self.feature_level, self._buffers.memories, all_rules=self._trusting
        )

    def _devices(self) -> Any:
        return (c_void_p * 1)(self._device)

    def _knows(self, model: Model) -> bool:
        """Whether the device has the extensions that a model uses: a model with others cannot be built at all."""
        graphs = (model.main, *model.referenced)
        codes = {int(operand.type) for graph in graphs for operand in graph.operands}
        codes |= {operation.type for graph in graphs for operation in graph.operations}
        used = {(code >> 16) & 0xFFFF for code in codes if is_extension(code)}
        return all(self._has_extension(row.name) for row in model.extension_name_to_prefix if row.prefix in used)

    def _has_extension(self, name: str) -> bool:
        if not self._library.has("Device_getExtensionSupport"):
            return False
        found = c_bool()
        self._library.call("Device_getExtensionSupport", self._device, name.encode(), ctypes.byref(found))
        return found.value

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        mine = [m for m in prepared_models if isinstance(m, NativePreparedModel) and m.library is self._library]
        if len(mine) != len(prepared_models):
            raise invalid("a prepared model that is not this device's")
        return self._buffers.allocate(desc, mine, input_roles, output_roles)


DRIVER = NNAPI
