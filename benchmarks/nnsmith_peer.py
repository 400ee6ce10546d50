"""The other side of `benchmarks.generation`: NNSmith 0.1.0 in its own Python, a line asked and a line answered.

Run by that Python as a script; nothing of this repository can be imported there. Asked are an operation count, the
first seed and how many graphs, as JSON; the answer has the seconds of CPU for the graphs alone, the seconds more for
their constants, and how many operations they have.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import os
import sys
import time
import warnings
from typing import Any

ELEMENTS = 65536  # most of a tensor
PATIENCE_MS = 10_000  # for one query of the solver
METHOD = "symbolic-cinit"  # NNSmith's default


def operators() -> tuple[Any, Any]:
    """NNSmith's ONNX target, and the operators that it may use there."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    # NNSmith exports each operator to learn which types it takes. By the exporter that is now the default this takes
    # longer than ten minutes.
    torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)
    target = importlib.import_module("nnsmith.materialize").Model.init("onnx", backend_target="cpu")
    target.add_seed_setter()
    found = importlib.import_module("nnsmith.narrow_spec").auto_opset(target, None, vulops=False)
    importlib.import_module("nnsmith.abstract.extension").activate_ext(opset=found, factory=None)
    return target, found


def main() -> None:
    """Answers until nothing more is asked."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what NNSmith prints is no answer
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    target, found = operators()
    generate = importlib.import_module("nnsmith.graph_gen").model_gen
    print(json.dumps({"operators": len(found)}), file=answers, flush=True)
    for line in sys.stdin:
        count, first, number = json.loads(line)
        graphs, constants, operations = 0.0, 0.0, 0
        for seed in range(first, first + number):
            start = time.process_time()
            made = generate(
                opset=found, method=METHOD, seed=seed, max_nodes=count, max_elem_per_tensor=ELEMENTS,
                timeout_ms=PATIENCE_MS,
            )  # fmt: skip
            drawn = time.process_time()
            graph = made.make_concrete()
            target.from_gir(graph)
            constants += time.process_time() - drawn
            graphs += drawn - start
            operations += graph.n_compute_inst()
        print(json.dumps([graphs, constants, operations]), file=answers, flush=True)


if __name__ == "__main__":
    main()
