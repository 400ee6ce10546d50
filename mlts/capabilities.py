"""What was measured, as the figures that a driver states of itself: `python -m mlts capabilities RUN [RUN...]`.

A driver's capabilities are execution time and power relative to the CPU, for each operand type. Time is the geometric
mean, over the models of a type, of the driver's latency over the baseline's; power where the system measures energy.
What no model of the runs says anything about stays out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.command_line import CommandParser
from mlts.folder import measurements
from nnhal.errors import UsageError

# Which operand types a model of a type runs on.
TYPES: Mapping[str, tuple[str, ...]] = {
    "float": ("TENSOR_FLOAT32", "FLOAT32"),
    "quant8": ("TENSOR_QUANT8_ASYMM",),
}
RELAXED = "relaxed float32 to float16"


@dataclass(frozen=True)
class Figure:
    """Relative to the CPU; below 1 is better.

    Attributes:
        power: None where no energy was measured.
        models: how many of them it is a mean over.
    """

    exec_time: float
    power: float | None
    models: int


def figures(rows: Iterable[Mapping[str, Any]]) -> dict[str, Figure]:
    """Figures by operand type, of the lines of measurements; relaxed models count for relaxed computation alone."""
    times: dict[str, list[float]] = {}
    powers: dict[str, list[float]] = {}
    for row in rows:
        ratio = row.get("ratio")
        if not ratio or not row.get("driver") or row["driver"]["on_driver"] < row["driver"]["operations"]:
            continue  # of a divided model the CPU has a part
        kind = str(row.get("type"))
        names = (RELAXED,) if kind == "float" and row.get("relaxed") else TYPES.get(kind, ())
        mine, base = (side.get("energy") for side in (row["driver"], row.get("baseline") or {}))
        for name in names:
            times.setdefault(name, []).append(float(ratio["ratio"][0]))
            if mine and base:
                powers.setdefault(name, []).append(mine / base / float(ratio["ratio"][0]))  # energy over time
    return {
        name: Figure(_mean(values), _mean(powers[name]) if name in powers else None, len(values))
        for name, values in sorted(times.items())
    }


def _mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def source(found: Mapping[str, Figure], driver: str, runs: Sequence[Path]) -> str:
    """Python source of the capabilities, for `get_capabilities`; power that was not measured is that of the CPU."""
    lines = [
        f'"""Capabilities of {_quoted(driver)} relative to the CPU, measured by nncts mlts."""',
        "",
        "from nnhal.device import Capabilities, OperandPerformance, PerformanceInfo",
        "from nnhal.types import OperandType",
        "",
        *(f"# {_quoted(str(run))}" for run in runs),
    ]
    unmeasured = [name for name, figure in found.items() if figure.power is None]
    if unmeasured:
        lines.append(f"# power was not measured for {', '.join(unmeasured)}: 1.0 stands for as much as the CPU")
    lines += ["CAPABILITIES = Capabilities(", "    operand_performance=("]
    for name, figure in found.items():
        if name != RELAXED:
            lines.append(f"        OperandPerformance(OperandType.{name}, {_info(figure)}),  # {figure.models} models")
    lines.append("    ),")
    if RELAXED in found:
        relaxed = found[RELAXED]
        for kind in ("scalar", "tensor"):
            name = f"relaxed_float32_to_float16_performance_{kind}"
            lines.append(f"    {name}={_info(relaxed)},  # {relaxed.models} models")
    return "\n".join([*lines, ")", ""])


def _info(figure: Figure) -> str:
    return f"PerformanceInfo({figure.exec_time:.3g}, {1.0 if figure.power is None else figure.power:.3g})"


def _quoted(text: str) -> str:
    """Text that ends neither a comment nor a docstring."""
    return text.encode("unicode_escape").decode("ascii").replace('"', "'")


def main(arguments: Sequence[str]) -> int:
    """Prints the source.

    Raises:
        UsageError: a folder holds no measurements, they are of several drivers, or say nothing.
    """
    words = "Writes what was measured as the capabilities that a driver states, in Python."
    parser = CommandParser(prog="python -m mlts capabilities", description=words, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="folder that python -m mlts wrote")
    parser.add_argument("--output", metavar="FILE", type=Path, help="where to write (default: standard output)")
    options = parser.parse_args(list(arguments))
    rows = [row for run in options.runs for row in measurements(run)]
    drivers = sorted({str(row["driver"]["driver"]) for row in rows if row.get("driver")})
    if len(drivers) > 1:
        raise UsageError(f"the runs are of several drivers, {' and '.join(drivers)}; give those of one")
    found = figures(rows)
    if not found:
        raise UsageError("the runs have no model that the driver runs whole: nothing can be said of its capabilities")
    text = source(found, drivers[0], options.runs)
    if options.output is None:
        sys.stdout.write(text)
    else:
        try:
            options.output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output={options.output} cannot be written: {error.strerror}") from None
    return 0
