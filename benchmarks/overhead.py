"""What the benchmark of real models adds to a latency: LiteRT through the suite against LiteRT's own interpreter.

`python -m benchmarks.overhead [--model=NAME] [--rounds=30]`. The driver `litert` runs in a process of its own and is
asked as every driver is; the interpreter is called in this process, with the same file, kernels and threads. Both take
turns; the ratio is that of `mlts.statistics.compare`. At most 1.05 is wanted of models above 5 ms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from ai_edge_litert.interpreter import Interpreter, OpResolverType

from harness.driver import open_driver
from mlts.packages import cache_folder
from mlts.station import Station, prepare
from mlts.statistics import compare_pairs
from mlts.subjects import chosen, listed, subject_of
from nnhal.loading import DriverSpec

MODELS = ("mobilenet_v1_1.0_224_float", "mobilenet_v1_1.0_224_quant", "mobilenet_v2_1.0_224_float")
DRIVER = "litert,resolver=auto,threads=1"
WANTED, LEAST = 1.05, 0.005
WARM = 5


def measure(name: str, rounds: int, log: Path) -> tuple[float, float, float]:
    """The ratio, and the medians in seconds: through the suite, and LiteRT's own."""
    (named,) = chosen(listed(), [name])
    subject = subject_of(named, cache_folder(), 4)
    interpreter = Interpreter(
        model_content=subject.file, num_threads=1, experimental_op_resolver_type=OpResolverType.AUTO
    )
    interpreter.allocate_tensors()
    places = [details["index"] for details in interpreter.get_input_details()]
    results = [details["index"] for details in interpreter.get_output_details()]

    def own() -> float:
        begun = time.perf_counter()
        for place, value in zip(places, values, strict=True):
            interpreter.set_tensor(place, value)
        interpreter.invoke()
        for place in results:
            interpreter.get_tensor(place)
        return time.perf_counter() - begun

    with closing(open_driver(DriverSpec.parse(DRIVER), log_path=log, spare=False)) as driver:
        device = driver.device
        _, prepared = prepare(device, subject.baseline_model)
        with closing(Station(device, subject.baseline_model, prepared, subject.samples[0])) as station:
            values = subject.samples[0]
            for _ in range(WARM):
                station.run()
                own()
            pairs = []
            for number in range(rounds):
                values = subject.samples[number % len(subject.samples)]
                station.place(values)
                if number % 2:
                    pairs.append((station.run(), own()))
                else:
                    theirs = own()
                    pairs.append((station.run(), theirs))
    ordered = [sorted(column) for column in zip(*pairs, strict=True)]
    return compare_pairs(pairs).ratio.value, ordered[0][rounds // 2], ordered[1][rounds // 2]


def main() -> int:
    """Prints a row for each model; the exit status says whether the wanted ratio was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    missed = 0
    print("| model | through the suite | LiteRT's own | ratio |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="nncts-overhead-") as folder:
        for name in options.model or MODELS:
            ratio, suite, own = measure(name, options.rounds, Path(folder) / "driver.log")
            missed += ratio > WANTED and own > LEAST
            print(f"| {name} | {1000 * suite:.2f} ms | {1000 * own:.2f} ms | {ratio:.3f} |", flush=True)
    print(f"\nat most {WANTED} is wanted above {1000 * LEAST:g} ms; missed by {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
