"""Inputs a second of each fuzz target, against the same work without the fuzzer and against an empty target.

`python -m benchmarks.fuzzing [--driver=reference] [--seconds=10] [--turns=3]`. Each target is fuzzed for a while by
`fuzz.worker`; then the inputs of its corpus are run once more by the same code in a process that has no fuzzer and no
instrumentation. The empty target is atheris with a function that does nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from statistics import median

from fuzz.board import Board
from fuzz.known import ask
from fuzz.plan import way_of
from fuzz.seeds import write_dictionary
from fuzz.slices import arguments_of
from fuzz.state import State
from fuzz.targets import targets_of
from fuzz.worker import ORDER, Order
from harness.driver import open_driver
from nnhal.loading import DriverSpec

EMPTY = """
    import sys
    import atheris

    atheris.Setup(["empty", "-max_total_time=3", "-print_final_stats=1"], lambda data: None)
    atheris.Fuzz()
"""
# The same work without the fuzzer: the inputs that it ran, in the order of the corpus, again and again for a while.
PLAIN = """
    import json, sys, time
    from pathlib import Path
    from fuzz.attempt import checked
    from fuzz.known import Known
    from fuzz.targets import TARGETS
    from harness.driver import open_driver
    from harness.guards import Arena
    from nnhal.loading import DriverSpec

    order = json.loads(Path(sys.argv[1]).read_text())
    known = Known.from_json(order["known"])
    driver = open_driver(DriverSpec.parse(order["driver"]), log_path=Path("/dev/null"),
                         in_process=order["in_process"], spare=False)
    device, arena, decode = driver.device, Arena(), TARGETS[order["target"]].decode
    inputs = [p.read_bytes() for p in sorted(Path(order["corpus"][0]).iterdir())]
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < float(sys.argv[2]):
        for data in inputs:
            attempt = decode(data, known)
            if attempt is not None:
                checked(attempt, device, arena, known.level, in_process=driver.in_process)
            count += 1
            if time.perf_counter() - begun > float(sys.argv[2]):
                break
    print(count / (time.perf_counter() - begun))
    driver.close()
"""
# The corpus alone, again and again, under the fuzzer: what its mutations draw is other work.
REPEATED = """
    import json, os, sys, time
    from pathlib import Path
    from fuzz import worker
    from fuzz.watching import watch_code
    import atheris

    order = worker.Order.load(Path(os.environ["NNCTS_FUZZ"]))
    watch_code(order.covered)
    from fuzz.board import Board
    from fuzz.known import Known
    from fuzz.targets import TARGETS

    board = Board(Path(order.folder) / "board")
    made = worker.Worker(order, TARGETS[order.target], Known.from_json(order.known), board)
    made.load()
    inputs = [p.read_bytes() for p in sorted(Path(order.corpus[0]).iterdir())]
    state = {"count": 0, "begun": 0.0}

    def one(data):
        if not state["begun"]:
            state["begun"] = time.perf_counter()
        made.one(inputs[state["count"] % len(inputs)])
        state["count"] += 1
        taken = time.perf_counter() - state["begun"]
        if taken > float(sys.argv[1]):
            print("rate", state["count"] / taken, flush=True)
            os._exit(0)

    atheris.Setup(["repeated", "-handle_segv=0", "-verbosity=0"], one)
    atheris.Fuzz()
"""


def _python(code: str, *arguments: str, **more: str) -> str:
    line = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(line, env={**os.environ, **more}, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _empty() -> float:
    """Inputs a second of a target that does nothing."""
    text = _python(EMPTY)
    return float(next(line.split()[-1] for line in text.splitlines() if "average_exec_per_sec" in line))


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", default="reference")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    way = way_of(options.driver, isolated=False)
    driver = open_driver(DriverSpec.parse(way.text), log_path=Path(os.devnull), spare=False)
    try:
        _, known = ask(driver.device)
    finally:
        driver.close()
    empty = _empty()
    print(f"empty atheris target: {empty:,.0f} inputs/s")
    print("| target | fuzzing | corpus again under the fuzzer | corpus again without it | ratio | against empty |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="nncts-fuzzing-") as place:
        state = State.open(Path(place) / "state")
        for target in targets_of(()):
            if target.barred(known):
                continue
            words = Path(place) / f"words-{target.name}"
            write_dictionary(target, words)
            folder = Path(place) / target.name
            folder.mkdir()
            corpus = state.corpus(target.name)
            order = Order(
                target.name,
                way.text,
                known.to_json(),
                way.covered,
                way.in_process,
                str(folder),
                (str(corpus), str(state.seeds(target, known))),
                arguments_of(options.seconds, 1, target.longest, words),
            )
            order.save(folder / "order")
            env = {ORDER: str(folder / "order")}
            begun = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "fuzz.worker"], env={**os.environ, **env}, capture_output=True, check=False
            )
            board = Board(folder / "board")
            fuzzing = board.read().inputs / (time.perf_counter() - begun)
            board.close()
            for path in state.seeds(target, known).iterdir():
                (corpus / path.name).write_bytes(path.read_bytes())
            plain, repeated = [], []
            for _ in range(options.turns):
                plain.append(float(_python(PLAIN, str(folder / "order"), "4").splitlines()[-1]))
                text = _python(REPEATED, "4", **env)
                repeated.append(float(next(line.split()[1] for line in text.splitlines() if line.startswith("rate "))))
            ratio = median(r / p for r, p in zip(repeated, plain, strict=True))
            print(
                f"| {target.name} | {fuzzing:.0f}/s | {median(repeated):.0f}/s | {median(plain):.0f}/s | {ratio:.2f} "
                f"| 1 / {empty / median(repeated):,.0f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
