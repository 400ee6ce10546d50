"""Runs the whole corpus once and counts what it reaches; `python -m fuzz.reach` with its order in NNCTS_REACH.

Where the driver is Python, lines are counted by coverage.py, whose pages go into the folder of the order.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ORDER = "NNCTS_REACH"
RESULT = "reach.json"
LINES = "lines"  # folder of coverage.py's pages


@dataclass(frozen=True)
class ReachOrder:
    """What is to be run.

    Attributes:
        driver: as `--driver` names it, with what must be loaded before it.
        known: of it, as text.
        in_process: the driver is loaded here.
        covered: files and folders whose lines are counted.
        corpora: folders of inputs by target.
        folder: for what comes of it.
        deadline: seconds for a call.
    """

    driver: str
    known: str
    in_process: bool
    covered: tuple[str, ...]
    corpora: dict[str, list[str]]
    folder: str
    deadline: float = 10.0

    def save(self, path: Path) -> None:
        """Writes it for the process."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def _patterns(covered: tuple[str, ...]) -> list[str]:
    root = Path(__file__).resolve().parent.parent
    found = [str(root / part) for part in covered]
    return [*found, *(f"{part}/*" for part in found if not part.endswith(".py"))]


@contextlib.contextmanager
def _counted(order: ReachOrder) -> Iterator[None]:
    """Counts lines while it lasts, and writes the pages."""
    if not order.covered:
        yield
        return
    import coverage

    counter = coverage.Coverage(include=_patterns(order.covered), data_file=None, branch=True)
    counter.start()
    try:
        yield
    finally:
        counter.stop()
        with contextlib.suppress(coverage.exceptions.NoDataError):
            counter.html_report(directory=str(Path(order.folder) / LINES), title=f"reached in {order.driver}")


def main() -> int:
    """Does what the order says."""
    row: dict[str, Any] = json.loads(Path(os.environ[ORDER]).read_text(encoding="utf-8"))
    order = ReachOrder(**{**row, "covered": tuple(row["covered"])})
    with _counted(order):
        result = _run(order)
    (Path(order.folder) / RESULT).write_text(json.dumps(result), encoding="utf-8")
    return 0


def _run(order: ReachOrder) -> dict[str, Any]:
    # Imported here, so that lines which run at import are counted.
    from fuzz.attempt import checked
    from fuzz.known import Known
    from fuzz.targets import TARGETS
    from harness.driver import open_driver
    from harness.guards import Arena
    from nnhal.errors import SuiteError
    from nnhal.loading import DriverSpec

    known = Known.from_json(order.known)
    driver = open_driver(
        DriverSpec.parse(order.driver),
        log_path=Path(os.devnull),
        in_process=order.in_process,
        deadline=order.deadline,
        spare=False,
    )
    operations: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    verdicts: dict[str, Counter[str]] = {}
    try:
        with contextlib.closing(Arena()) as arena:
            for name, folders in order.corpora.items():
                found = verdicts.setdefault(name, Counter())
                for path in (path for folder in folders for path in sorted(Path(folder).iterdir())):
                    attempt = TARGETS[name].decode(path.read_bytes(), known)
                    if attempt is None:
                        found["no case"] += 1
                        continue
                    with contextlib.suppress(SuiteError):
                        case, judgement, outcome = checked(
                            attempt, driver.device, arena, known.level, in_process=driver.in_process
                        )
                        found[judgement.verdict.value] += 1
                        operations.update(_operations(case.models[0]))
                        answers.update(_answers(case, outcome))
    finally:
        driver.close()
    return {"operations": operations, "answers": answers, "verdicts": verdicts}


def _operations(model: Any) -> Iterator[str]:
    """Operations of a model with the type of what they take first."""
    from nnhal.types import OperandType, OperationType

    operands = model.main.operands
    for operation in model.main.operations:
        first = operation.inputs[0] if operation.inputs else -1
        kind = operands[first].type if 0 <= first < len(operands) else None
        name = OperationType(operation.type).name if operation.type in list(OperationType) else "unknown code"
        yield f"{name} {OperandType(kind).name if kind in list(OperandType) else 'other'}"


def _answers(case: Any, outcome: Any) -> Iterator[str]:
    """What was asked, in which mode, and the status that came."""
    for done in outcome.steps:
        step = case.steps[done.step]
        status = "no status" if done.status is None else getattr(done.status, "name", str(done.status))
        yield f"{step.action.value} {step.mode.name.lower()} {'skipped' if done.skipped else status}"


if __name__ == "__main__":
    sys.exit(main())
