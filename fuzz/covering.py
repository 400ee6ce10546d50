"""How a driver is made to tell where it has been: which of its files, which counters, and what must be loaded first."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path

from nnhal.errors import UsageError
from nnhal.loading import REFERENCE, ROOT, DriverSpec, installed

EXTENSION = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
INSTALL = 'pip install -e ".[suite]"'
REFERENCE_PARTS = ("reference_driver", "nnhal/validat*.py", "nnhal/wellformed.py", "nnhal/sealed_cache.py")
COVERAGE = b"__sanitizer_cov_8bit_counters_init"
REFUSED_COVERAGE = (b"__sanitizer_cov_trace_pc_guard", b"__sanitizer_cov_trace_pc\0")
ADDRESS, UNDEFINED = b"__asan_init", b"__ubsan_handle_"
# The address sanitizer fills memory that it hands out, so that what nobody wrote shows as a wrong result.
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:max_malloc_fill_size=1048576"
    ":malloc_fill_byte=190:handle_segv=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:abort_on_error=1",
}


def runtimes() -> Path:
    """Where atheris keeps libraries of a sanitizer with a fuzzer in it."""
    return Path(sysconfig.get_paths()["purelib"])


# --- native libraries -------------------------------------------------------------------------------------------------


def is_covered(spec: DriverSpec) -> bool:
    """Whether a native driver counts where it has been, in a way that the fuzzer reads.

    Raises:
        UsageError: it cannot be read, or counts in a way that the fuzzer refuses.
    """
    data = _content(spec)
    refused = any(name in data for name in REFUSED_COVERAGE)
    if refused and COVERAGE not in data:
        raise UsageError(
            f"{spec.name} counts its coverage in a way that the fuzzer does not read; "
            "compile it by clang with -fsanitize=fuzzer-no-link"
        )
    return COVERAGE in data


def _content(spec: DriverSpec) -> bytes:
    try:
        return Path(spec.name).read_bytes()
    except OSError as error:
        raise UsageError(f"driver {spec.name!r} cannot be read: {error.strerror}") from None


def preload_of(spec: DriverSpec) -> str | None:
    """What a process must load before a native driver that was compiled for the fuzzer; None for nothing.

    Raises:
        UsageError: the library cannot be read.
    """
    if not spec.is_native:
        return spec.preload
    data = _content(spec)
    if ADDRESS in data:
        return str(runtimes() / "asan_with_fuzzer.so")
    if UNDEFINED in data or COVERAGE in data:
        return str(runtimes() / "ubsan_with_fuzzer.so")
    return spec.preload


def mutator() -> str:
    """What lets the fuzzer call the suite's own changes: it looks for them once, when it is loaded itself."""
    found = importlib.util.find_spec("atheris")
    places = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
    names = [str(path) for place in places for path in place.glob(f"custom_mutator*{EXTENSION}")]
    if not names:
        raise UsageError(f"this atheris takes no changes of ours: it has no custom_mutator; {INSTALL}")
    return names[0]


def environment_for(spec: DriverSpec) -> dict[str, str]:
    """Variables of a process that loads a native driver: what sanitizers are told, where nobody has told them else."""
    return {name: os.environ.get(name, words) for name, words in SANITIZERS.items()} if spec.is_native else {}


# --- Python -----------------------------------------------------------------------------------------------------------


def parts_of(spec: DriverSpec) -> tuple[str, ...]:
    """Files and folders of a Python driver, as patterns below the root or whole paths; none for a native one."""
    if spec.is_native:
        return ()
    if spec.name == REFERENCE:
        return REFERENCE_PARTS
    place = spec.name.rpartition(":")[0] or spec.name
    if place.endswith(".py"):
        return (str(Path(place).resolve()), f"{Path(place).resolve().parent}/_{Path(place).stem}*.py")
    if (ROOT / "drivers" / f"{place}.py").is_file():
        return (f"drivers/{place}.py", f"drivers/_{place}*.py")
    return _package(spec)


def _package(spec: DriverSpec) -> tuple[str, ...]:
    """The folder or file of a driver that is installed as a package; nothing where there is none."""
    module = installed().get(spec.name, spec.name).partition(":")[0]
    found = importlib.util.find_spec(module.partition(".")[0])
    if found is None or found.origin is None:
        return ()
    origin = Path(found.origin)
    return (str(origin.parent if origin.name == "__init__.py" else origin),)


def needs_fuzzer() -> None:
    """Sees that the fuzzer is there.

    Raises:
        UsageError: atheris is not installed; the message has the line that installs it.
    """
    if importlib.util.find_spec("atheris") is None:
        raise UsageError(f"fuzzing needs atheris, which is not installed: {INSTALL}")
