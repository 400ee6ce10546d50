"""How long ten draws in one scope take: `python -m benchmarks.drawing`.

Ten calls of random operations are drawn into one scope, operands reused where they fit, results included. No peer
draws the same thing; NNSmith's published rate for graphs of ten nodes stands beside it as a measure of the field.
"""

from __future__ import annotations

import random
import statistics
import time

from opset import OPSET
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.source import SeededSource

GRAPHS = 400
DRAWS = 10
AIM_MS = 4.0


def ten_draws(seed: int) -> float:
    """Milliseconds for ten draws in one scope."""
    chooser = random.Random(seed)
    pairs = [(d, s) for d in OPSET.values() for s in d.signatures]
    chosen = [chooser.choice(pairs) for _ in range(DRAWS)]
    started = time.perf_counter()
    scope = Scope(SeededSource(seed), reuse=50)
    for definition, signature in chosen:
        draw_call(definition, signature, scope)
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    """Prints median, mean and 90 % of the times."""
    for seed in range(20):
        ten_draws(seed)
    times = sorted(ten_draws(seed) for seed in range(GRAPHS))
    median, mean = statistics.median(times), statistics.fmean(times)
    print(f"ten draws in one scope, {GRAPHS} scopes over {len(OPSET)} operations:")
    most = times[int(0.9 * GRAPHS)]
    print(f"  median {median:.2f} ms, mean {mean:.2f} ms, 90 % below {most:.2f} ms; aim {AIM_MS} ms")
    print(f"  {1e3 / mean:.0f} graphs of ten a second; NNSmith 0.1.0 draws 30 of ten nodes a second (measured before)")


if __name__ == "__main__":
    main()
