"""What is kept from one night to the next: the corpus of each target, and the findings that are known."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fuzz.known import Known
from fuzz.seeds import seeds_of
from fuzz.targets import Target
from nnhal.errors import UsageError

FINDINGS = "findings.json"
FORMAT = 1


@dataclass
class Finding:
    """A failure that is told from others by its key.

    Attributes:
        key: see `fuzz.signature`.
        id: of its case.
        target: by which it was found first.
        line: the failure in one line.
        first: date on which it was found first.
        count: how often it was come to.
    """

    key: tuple[str, ...]
    id: str
    target: str
    line: str
    first: str = ""
    count: int = 1

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Finding:
        """The finding of a row of the file."""
        words = {name: str(row[name]) for name in ("id", "target", "line", "first")}
        return cls(tuple(map(str, row["key"])), **words, count=int(row["count"]))


@dataclass
class State:
    """A folder with corpora and known findings.

    Attributes:
        folder: made when it is not there.
        findings: by key, those of earlier nights included.
        merged: number of inputs of each target when its corpus was pruned last.
    """

    folder: Path
    findings: dict[tuple[str, ...], Finding] = field(default_factory=dict)
    merged: dict[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> State:
        """The state in a folder.

        Raises:
            UsageError: it cannot be read or made.
        """
        state = cls(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / FINDINGS
            if path.is_file():
                row = json.loads(path.read_text(encoding="utf-8"))
                if row["format"] != FORMAT:
                    raise ValueError(f"format {row['format']}, {FORMAT} is understood")
                found = [Finding.of(one) for one in row["findings"]]
                state.findings = {one.key: one for one in found}
                state.merged = {str(name): int(count) for name, count in row["merged"].items()}
        except OSError as error:
            raise UsageError(f"--state={folder}: {error.strerror}; give another folder") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{folder / FINDINGS} is damaged ({error}): delete it, and all findings are new") from None
        return state

    def save(self) -> None:
        """Writes what is known."""
        row = {"format": FORMAT, "merged": self.merged, "findings": [asdict(f) for f in self.findings.values()]}
        part = self.folder / f"{FINDINGS}.part"
        part.write_text(json.dumps(row, indent=1), encoding="utf-8")
        part.replace(self.folder / FINDINGS)

    def add(self, found: Finding) -> bool:
        """Counts a finding; says whether there was none like it."""
        known = self.findings.get(found.key)
        if known is not None:
            known.count += 1
            self.save()
            return False
        today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
        found.first = today
        self.findings[found.key] = found
        self.save()
        return True

    # ---- corpora

    def corpus(self, target: str) -> Path:
        """The folder of a target's inputs."""
        path = self.folder / "corpus" / target
        path.mkdir(parents=True, exist_ok=True)
        return path

    def seeds(self, target: Target, known: Known) -> Path:
        """The folder of a target's first inputs, made of the definitions."""
        path = self.folder / "seeds" / target.name
        if not path.is_dir():
            path.mkdir(parents=True)
            for number, data in enumerate(seeds_of(target, known)):
                (path / f"seed{number:03}").write_bytes(data)
        return path

    def size(self, target: str) -> int:
        """Number of a target's inputs."""
        return sum(1 for _ in self.corpus(target).iterdir())

    def edges(self, target: str) -> Path:
        """The file with the edges of the driver in the order in which the target met them; with its build behind."""
        return self.folder / f"edges-{target}"

    def checked(self, target: str) -> tuple[str, ...]:
        """Names of inputs that were looked at for leaks."""
        path = self.folder / f"checked-{target}"
        return tuple(path.read_text(encoding="ascii").split()) if path.is_file() else ()

    def add_checked(self, target: str, names: Iterable[str]) -> None:
        """Notes more of them."""
        with (self.folder / f"checked-{target}").open("a", encoding="ascii") as file:
            file.writelines(f"{name}\n" for name in names)
