"""Which operations and types random graphs reach, and which of them take from another operation and give to one.

`python -m tests.graph_reach` prints the table.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from nnhal.types import OperationType
from opset.drawing import UnsatisfiableError
from opset.source import SwiftSource
from random_graph.generator import draw_calls
from random_graph.mixes import MIXES

Row = tuple[str, str]  # operation, and its row of types

GRAPHS = {
    "small": 2000,
    "single": 600,
    "detection": 600,
    "convolution": 150,
    "casting": 300,
    "comparison": 400,
    **dict.fromkeys(("quant8_symm", "quant16_symm", "quant16_asymm", "bool8"), 60),
}
# FILL takes a list of sizes and a scalar. RANK gives a scalar, RANDOM_MULTINOMIAL what nobody can foretell.
TAKES_NOTHING = frozenset({OperationType.FILL.name})
GIVES_NOTHING = frozenset({OperationType.RANK.name, OperationType.RANDOM_MULTINOMIAL.name})


@dataclass
class Reach:
    """How often each operation and row of types is drawn, takes another's result, and gives one to another."""

    drawn: Counter[Row] = field(default_factory=Counter)
    fed: Counter[Row] = field(default_factory=Counter)
    feeding: Counter[Row] = field(default_factory=Counter)


def rows() -> set[Row]:
    """All operations and their rows of types."""
    return {(c.definition.name, s.row.id) for c in MIXES["small"].choices for s in c.signatures}


def takes_nothing(row: Row) -> bool:
    """Whether no other operation can give what the operation takes: no operation gives scales for each channel."""
    return row[0] in TAKES_NOTHING or row[1].startswith("per_channel")


def count(graphs: Mapping[str, int] = GRAPHS) -> Reach:
    """Draws graphs of mixes and counts."""
    reach = Reach()
    for name, number in graphs.items():
        for seed in range(number):
            try:
                scope, calls = draw_calls(SwiftSource(f"reach/{name}/{seed}"), MIXES[name])
            except UnsatisfiableError:
                continue
            givers: dict[int, Row] = {}
            for call in calls:
                row = (call.definition.name, call.signature.row.id)
                reach.drawn[row] += 1
                taken = {a.key for a in call.inputs.values() if a.key in givers and a.key in scope.given}
                reach.fed[row] += bool(taken)
                reach.feeding.update({givers[key] for key in taken if key is not None})
                givers |= {a.key: row for a in call.results.values() if a.key is not None}
    return reach


def main() -> None:
    """Prints the table."""
    reach = count()
    write = sys.stdout.write
    write("| operation | types | drawn | takes from another | gives to another |\n| --- | --- | --- | --- | --- |\n")
    for row in sorted(rows()):
        write(f"| {row[0]} | {row[1]} | {reach.drawn[row]} | {reach.fed[row]} | {reach.feeding[row]} |\n")


if __name__ == "__main__":
    main()
