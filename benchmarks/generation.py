"""Random graphs a second, beside NNSmith 0.1.0's: `python -m benchmarks.generation [--nnsmith=PATH/TO/python]`.

A graph of ours is drawn with its constants and is valid; it is neither evaluated nor saved. Draws that run dry count as
time. NNSmith's is what its solver finds; its rate with constants is stated beside it. Both sides work in turns on one
core, and seconds are those of the CPU, so that other work on the machine weighs on both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnhal.errors import UsageError
from opset.drawing import UnsatisfiableError
from opset.source import SwiftSource
from random_graph.generator import draw_model
from random_graph.mixes import MIXES, Mix

COUNTS = (5, 10)  # operations that are asked for
GROWTH = (5, 10, 40, 150, 600)
COMPARED = ("small", "float32")
ROUNDS = 5
THEIRS = 20  # graphs of NNSmith a round
SHARE = 3  # times as long as NNSmith's round ours may take, at least
LEAST_S = 1.0
RECIPE = "python3.11 -m venv VENV && VENV/bin/pip install 'nnsmith[onnx]==0.1.0'"


@dataclass
class Tally:
    """What one side made.

    Attributes:
        graphs: how many.
        operations: in all of them.
        seconds: of CPU.
        constants: seconds more for constants, where they are not in the others.
    """

    graphs: int = 0
    operations: int = 0
    seconds: float = 0.0
    constants: float = 0.0

    @property
    def rate(self) -> float:
        """Graphs a second."""
        return self.graphs / self.seconds

    @property
    def size(self) -> float:
        """Operations a graph."""
        return self.operations / self.graphs


class Ours:
    """Draws of a mix, with another number of operations."""

    def __init__(self, name: str, count: int) -> None:
        self.mix: Mix = replace(MIXES[name], sizes=(count, count))
        self.seed = 0
        self.made = Tally()

    def run(self, seconds: float) -> None:
        """Draws for so many seconds of CPU, one graph at least."""
        start, graphs = time.process_time(), self.made.graphs
        while self.made.graphs == graphs or time.process_time() - start < seconds:
            self.seed += 1
            try:
                drawn = draw_model(SwiftSource(f"generation/{self.seed}"), self.mix)
            except UnsatisfiableError:
                continue
            self.made.graphs += 1
            self.made.operations += len(drawn.model.main.operations)
        self.made.seconds += time.process_time() - start


class Theirs:
    """NNSmith in its own Python."""

    def __init__(self, python: str) -> None:
        """Starts it, which takes half a minute when it has not yet learned what its operators take.

        Raises:
            UsageError: that Python has no NNSmith.
        """
        if not Path(python).is_file():
            raise UsageError(f"--nnsmith={python} is no Python; {RECIPE} makes one")
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name("nnsmith_peer.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.seed = 0
        self.operators = int(
            self._answer(f"--nnsmith={python} has no working NNSmith; {RECIPE} makes one")["operators"]
        )

    def run(self, made: Tally, count: int) -> float:
        """Makes the graphs of a round and gives the seconds for them."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([count, self.seed, THEIRS]) + "\n")
        self.process.stdin.flush()
        self.seed += THEIRS
        seconds, constants, operations = self._answer("NNSmith died")
        made.graphs += THEIRS
        made.operations += operations
        made.seconds += seconds
        made.constants += constants
        return float(seconds)

    def stop(self) -> None:
        """Ends its process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self, otherwise: str) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise UsageError(otherwise)
        return json.loads(line)


def compare(theirs: Theirs | None) -> None:
    """Prints both sides' rates for few operations, and the ratio."""
    print(f"{'mix':<10}{'asked for':>10}{'operations':>12}{'graphs/s':>10}", end="")
    print(f"{'NNSmith':>10}{'operations':>12}{'with constants':>16}{'ratio':>8}{'':>4}" if theirs else "")
    for count in COUNTS:
        sides = [Ours(name, count) for name in COMPARED]
        peer = Tally()
        for side in sides:
            side.run(LEAST_S / 2)
            side.made = Tally()
        for _ in range(ROUNDS):
            seconds = theirs.run(peer, count) if theirs else LEAST_S
            for side in sides:
                side.run(max(LEAST_S, seconds / SHARE))
        for name, side in zip(COMPARED, sides, strict=True):
            print(f"{name:<10}{count:>10}{side.made.size:>12.1f}{side.made.rate:>10.0f}", end="")
            if theirs:
                whole = peer.graphs / (peer.seconds + peer.constants)
                ratio = side.made.rate / peer.rate
                print(f"{peer.rate:>10.1f}{peer.size:>12.1f}{whole:>16.1f}{ratio:>8.1f}", end="")
            print()


def grow() -> None:
    """Prints how long graphs of ours take by their size."""
    print(f"\n{'asked for':>10}{'operations':>12}{'graphs/s':>10}{'ms a graph':>12}{'us an operation':>17}")
    for count in GROWTH:
        side = Ours("small", count)
        side.run(2 * LEAST_S)
        made = side.made
        each = made.seconds / made.graphs
        print(f"{count:>10}{made.size:>12.1f}{made.rate:>10.1f}{each * 1e3:>12.2f}{each * 1e6 / made.size:>17.0f}")


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation", description=__doc__)
    parser.add_argument("--nnsmith", metavar="PYTHON", help=f"of an environment with NNSmith: {RECIPE} (1.1 GB)")
    options = parser.parse_args(arguments)
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    theirs = None
    try:
        if options.nnsmith:
            theirs = Theirs(options.nnsmith)
            print(f"core {core}, load {os.getloadavg()[0]:.1f}; NNSmith has {theirs.operators} operators\n")
        else:
            print(f"core {core}, load {os.getloadavg()[0]:.1f}; without NNSmith: --nnsmith=PYTHON, {RECIPE}\n")
        compare(theirs)
        grow()
    except UsageError as error:
        print(f"benchmarks.generation: {error}", file=sys.stderr)
        return 2
    finally:
        if theirs:
            theirs.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
