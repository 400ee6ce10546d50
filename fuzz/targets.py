"""The targets: each a function of bytes. What a driver owes follows from validation.

Valid models are answered rightly, invalid ones refused with INVALID_ARGUMENT, and what the contract leaves open is
survived. Inputs become cases, so that whatever is found is replayed and minimised like any other failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzz.attempt import Attempt
from fuzz.caches import cache
from fuzz.extensions import extension_model
from fuzz.graphs import changed_graph, valid_graph
from fuzz.known import Known
from fuzz.parsers import READERS
from fuzz.raw import wire_model
from fuzz.requests import request
from fuzz.sequences import call_sequence
from nnhal.errors import UsageError
from nnhal.types import FL3
from opset.source import BytesSource, Source

Make = Callable[[Source, Known], "Attempt | None"]
Decode = Callable[[bytes, Known], "Attempt | None"]
DRIVER, OWN = "driver", "own"  # names of groups


def _always(known: Known) -> str:
    return ""


@dataclass(frozen=True)
class Target:
    """A target.

    Attributes:
        name: in `--target`, and of its corpus.
        sentence: what is tried.
        make: makes a case of choices, of which the bytes are one behind the other.
        parse: makes a case of bytes that have a format.
        read: that reader.
        files: of it, that are looked at for coverage.
        barred: why the target does not apply to a driver, or nothing.
        longest: bytes of an input.
        weight: how much time it gets beside the others: more the more can come out of its inputs.
    """

    name: str
    sentence: str
    make: Make | None = None
    parse: Decode | None = None
    read: Callable[[bytes], None] | None = None
    files: tuple[str, ...] = ()
    barred: Callable[[Known], str] = _always
    longest: int = 512
    weight: float = 1.0

    @property
    def group(self) -> str:
        """Whether it is about a driver or about the suite itself."""
        return DRIVER if self.read is None else OWN

    def decode(self, data: bytes, known: Known) -> Attempt | None:
        """The case of an input; None where it becomes none."""
        return self.decoded(data, known)[0]

    def decoded(self, data: bytes, known: Known) -> tuple[Attempt | None, int]:
        """The case of an input, and how many of its bytes had a say in it."""
        if self.make is None:
            return None if self.parse is None else self.parse(data, known), len(data)
        source = BytesSource(data)
        return self.make(source, known), min(source.position, len(data))


def _needs_vehicles(known: Known) -> str:
    return "" if known.vehicles else "the driver does none of the models that it is about"


def _needs_caching(known: Known) -> str:
    return _needs_vehicles(known) if known.caching else "the driver does not declare caching"


def _needs_extensions(known: Known) -> str:
    if known.level < FL3:
        return f"there are no extensions at level {known.level.version}"
    return _needs_vehicles(known)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("models", "valid graphs, in every mode", valid_graph, weight=2.0),
        Target("mutants", "graphs with changed fields", changed_graph, weight=2.0),
        Target("requests", "requests and their memory", request, barred=_needs_vehicles, longest=128),
        Target(
            "sequences", "calls in any order, of several threads", call_sequence, barred=_needs_vehicles, weight=2.0
        ),
        Target(
            "caches",
            "cache files that are not as they were saved",
            cache,
            barred=_needs_caching,
            longest=160,
        ),
        Target("extensions", "vendor extensions", extension_model, barred=_needs_extensions, longest=96, weight=0.5),
        Target("wire", "models read from bytes", parse=wire_model, barred=_needs_vehicles, longest=4096, weight=0.5),
        *(
            Target(
                name,
                (read.__doc__ or "").partition("\n")[0].rstrip(".").lower(),
                read=read,
                files=files,
                longest=8192,
            )
            for name, (read, files) in READERS.items()
        ),
    )
}
GROUPS = {group: tuple(t.name for t in TARGETS.values() if t.group == group) for group in (DRIVER, OWN)}


def targets_of(names: tuple[str, ...]) -> list[Target]:
    """The targets of these names or groups; those of drivers when there is none.

    Raises:
        UsageError: there is no such target.
    """
    found: dict[str, Target] = {}
    for name in names or (DRIVER,):
        for one in GROUPS.get(name, (name,)):
            if one not in TARGETS:
                known = ", ".join((*GROUPS, *TARGETS))
                raise UsageError(f"--target={name} is unknown; there are {known}")
            found[one] = TARGETS[one]
    return list(found.values())
