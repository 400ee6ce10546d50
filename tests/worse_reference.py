"""The reference made worse on purpose, as a driver: results of some operations are rounded down.

`tests/worse_reference.py,kernel=CONV_2D` for all of a kind, `filter=CHECKSUM` for the one that has this filter, `by=N`
for so many steps more.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

import opset.graph
from opset.quantization import QUANTIZED, limits
from reference_driver.device import ReferenceDevice

FLOAT_BITS = 12  # of a float's fraction that are kept


def filter_of(call: Any) -> int:
    """What tells a convolution from the others of a model: the checksum of its filter, or 0 where it has none."""
    found = call.inputs.get("filter") or call.inputs.get("weights")
    return zlib.crc32(found.value.tobytes()) if found is not None and found.value is not None else 0


class Worse(ReferenceDevice):
    """Results at the next step below; of floats, the next with fewer bits towards zero."""

    def __init__(self, kernel: str = "", filter: str = "", by: str = "0", **options: str) -> None:
        super().__init__(**options)
        run = opset.graph.run_call

        def biased(call: Any, *rest: Any) -> Any:
            results = run(call, *rest)
            if call.definition.name != kernel and str(filter_of(call)) != filter:
                return results
            return {name: r.storing(_down(r, call.results[name].type, int(by))) for name, r in results.items()}

        opset.graph.run_call = biased


def _down(result: Any, kind: Any, by: int) -> Any:
    if kind in QUANTIZED:
        low, high = limits(kind)
        return np.clip(np.floor(result.exact) - by, low, high).astype(result.stored.dtype)
    fraction, exponent = np.frexp(result.stored.astype(np.float64))
    return np.ldexp(np.trunc(fraction * 2.0**FLOAT_BITS) / 2.0**FLOAT_BITS, exponent).astype(result.stored.dtype)


DRIVER = Worse
