"""From what a user writes after `--driver=` to a Device: the same in the suite and in the driver's own process."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType

from nnhal.device import Adapter, Device
from nnhal.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
ENTRY_POINTS = "nncts.drivers"
ATTRIBUTE = "DRIVER"
REFERENCE = "reference"
NATIVE = "nnapi"  # the driver that loads shared libraries
ALSO = "also accepted: module:attribute, path/to/file.py:attribute or path/to/library.so"


@dataclass(frozen=True)
class DriverSpec:
    """A driver as the user names it.

    Attributes:
        text: as it was written.
        name: up to the first comma.
        options: handed to the driver's factory.
        python: interpreter of the driver's process; None is the suite's own.
        preload: shared library that the driver's process loads before all others: a sanitizer's.
    """

    text: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    preload: str | None = None

    @classmethod
    def parse(cls, text: str) -> DriverSpec:
        """Reads `NAME[,key=value...]`.

        Raises:
            UsageError: the text has no name, or an option that is not `key=value` or stands twice.
        """
        name, *items = [item.strip() for item in text.split(",")]
        if not name:
            raise UsageError(f"driver {text!r} has no name; write NAME[,key=value...]")
        options: dict[str, str] = {}
        for item in items:
            key, equals, value = item.partition("=")
            if not equals or not key:
                raise UsageError(f"driver option {item!r} of {text!r} is not key=value")
            if key in options:
                raise UsageError(f"driver option {key!r} stands twice in {text!r}")
            options[key] = value
        places = {key: options.pop(key, None) for key in ("python", "preload")}
        for key, place in places.items():
            if place == "":
                raise UsageError(f"driver option {key!r} of {text!r} is empty; write {key}=PATH")
        return cls(text, name, options, **places)

    @property
    def is_native(self) -> bool:
        """Whether the name is that of a shared library with the NNAPI C interface."""
        return re.search(r"\.so(\.\d+)*$", self.name) is not None

    @property
    def is_ours(self) -> bool:
        """Whether the driver's file is one of this repository, so that a fault in it is the suite's."""
        if self.name == REFERENCE:
            return self.name in installed()
        return _in_drivers(self.name) is not None


def _in_drivers(name: str) -> Path | None:
    path = ROOT / "drivers" / f"{name}.py"
    return path if re.fullmatch(r"[A-Za-z]\w*", name) and path.is_file() else None


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


def installed() -> dict[str, str]:
    """Names of all drivers that are found, and where each comes from. Nothing is imported for it."""
    found = {name: point.value for name, point in _entry_points().items()}
    if importlib.util.find_spec("reference_driver") is not None:
        found[REFERENCE] = f"reference_driver:{ATTRIBUTE}"
    for path in sorted((ROOT / "drivers").glob("[A-Za-z]*.py")):
        if re.search(rf"^{ATTRIBUTE}\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            found[path.stem] = f"drivers/{path.name}"
    return dict(sorted(found.items()))


def _problem(spec: DriverSpec, error: BaseException) -> UsageError:
    text = str(error).strip().splitlines()
    return UsageError(f"driver {spec.name!r} fails to import: {type(error).__name__}: {text[0] if text else ''}")


def _import_file(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise UsageError(f"driver file {path} is no Python file")
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    name = path.stem if loaded is None else f"nncts_driver_{path.stem}"
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # its own neighbours, as if it were run
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _locate(spec: DriverSpec) -> tuple[str, str]:
    """The module's name or file and the attribute's name."""
    name = spec.name
    if spec.is_native:
        return f"drivers.{NATIVE}", ATTRIBUTE
    place, colon, attribute = name.rpartition(":")
    if place.endswith(".py") or name.endswith(".py"):
        place, attribute = (place, attribute) if place.endswith(".py") else (name, ATTRIBUTE)
        if not Path(place).is_file():
            raise UsageError(f"driver file {place!r} does not exist; give path/to/file.py:attribute")
        return str(Path(place).resolve()), attribute or ATTRIBUTE
    if colon:
        return place, attribute or ATTRIBUTE
    if _in_drivers(name):
        return f"drivers.{name}", ATTRIBUTE
    known = installed()
    if name not in known:
        raise UsageError(f"driver {name!r} not found; installed: {', '.join(known) or 'none'}; {ALSO}")
    module, _, attribute = known[name].partition(":")
    return module, attribute or ATTRIBUTE


def _load_module(spec: DriverSpec, place: str) -> ModuleType:
    try:
        return _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            known = ", ".join(installed()) or "none"
            raise UsageError(
                f"driver {spec.name!r} not found: there is no module {place!r}; installed: {known}; {ALSO}"
            ) from None
        raise _problem(spec, error) from error
    except (Exception, SystemExit) as error:  # whatever a vendor's module does when imported
        raise _problem(spec, error) from error


def find(spec: DriverSpec) -> tuple[ModuleType, object]:
    """The module a driver lives in and the object it is named by.

    Raises:
        UsageError: one sentence that names the thing and the mend.
    """
    place, attribute = _locate(spec)
    module = _load_module(spec, place)
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(
                f"driver {spec.name!r} has no attribute {attribute!r}; "
                f"define {ATTRIBUTE} = YourDevice, or name another after a colon"
            )
        found = getattr(found, part)
    return module, found


def load(spec: DriverSpec) -> Device:
    """The driver itself.

    Raises:
        UsageError: it is not found, fails to import, refuses its options, or is no Device.
    """
    _, factory = find(spec)
    if isinstance(factory, Device):
        if spec.options:
            raise UsageError(f"driver {spec.name!r} is an object and takes no options")
        return factory
    if not callable(factory):
        raise UsageError(f"driver {spec.name!r} is {type(factory).__name__}; a Device is needed")
    named = {"library": spec.name} if spec.is_native else {}
    try:
        made = factory(**named, **spec.options)
    except UsageError:
        raise
    except TypeError as error:
        if spec.options or "abstract" not in str(error):
            options = ", ".join(spec.options) or "none"
            raise UsageError(f"driver {spec.name!r} does not take these options (given: {options}): {error}") from error
        raise UsageError(f"driver {spec.name!r} is not complete: {error}") from error
    except (Exception, SystemExit) as error:  # a vendor's constructor may raise anything
        text = f"driver {spec.name!r} fails to start: {type(error).__name__}: {error}"
        raise UsageError(text) from error
    if not isinstance(made, Device):
        raise UsageError(f"driver {spec.name!r} gives {type(made).__name__}, which is no nnhal.device.Device")
    return made


def adapter_of(spec: DriverSpec, class_name: str = "") -> type[Adapter]:
    """The class whose `translate` makes models ready for a driver, without making the driver.

    Args:
        spec: the driver.
        class_name: qualified name of the device's class, for drivers that are made by a function.

    Raises:
        UsageError: the driver is not found, or has no such class.
    """
    module, found = find(spec)
    candidate: object = found
    if class_name and not isinstance(found, type):
        candidate = module
        for part in class_name.split("."):
            candidate = getattr(candidate, part, None)
    if isinstance(candidate, type) and issubclass(candidate, Adapter):
        return candidate
    raise UsageError(f"driver {spec.name!r} has no Adapter class {class_name!r}; define it at the top of its file")
