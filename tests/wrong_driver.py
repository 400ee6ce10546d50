"""The reference driver with one fault in the kernel of one operation: what random graphs have to find and make small.

`--driver=tests/wrong_driver.py,operation=ADD,fault=ac` skips the fused activation of ADD. Faults are called as in
`benchmarks.generic_faults`. Where an operation has several places for one (an input, a result), it is in the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.generic_faults import FAULTS, Fault, Seen, answered, fitted, unseeded
from harness.make import expected_outputs
from nnhal.errors import UsageError
from nnhal.types import OperationType
from opset import OPSET
from opset.call import Call
from opset.evaluate import Result
from opset.values import Arithmetic
from reference_driver import ReferenceDevice


@dataclass(frozen=True)
class _Wrong(Arithmetic):
    """The baseline's arithmetic, with the results of one operation as they are with a fault.

    Attributes:
        operation: its code.
        fault: what is done wrong, where the operands have a place for it.
    """

    operation: OperationType = OperationType.ADD
    fault: Fault = FAULTS[0]

    def settled(self, call: Call, results: dict[str, Result]) -> dict[str, Result]:
        if call.definition.code != self.operation or unseeded(call):
            return results
        place = next(iter(self.fault.places(call).values()), None)
        if place is None:
            return results
        due = {each.name: each for each in expected_outputs(call)}
        answer = answered(self.fault, Seen(call, results, due), place)
        if answer is None:
            return results
        return {n: r.storing(fitted(answer[n], r.stored.shape)) for n, r in results.items()}


class WrongDriver(ReferenceDevice):
    """The reference, but for one operation.

    Args:
        operation: in which the fault is, by name.
        fault: key in `benchmarks.generic_faults.FAULTS`.

    Raises:
        UsageError: there is no such operation or fault.
    """

    def __init__(self, operation: str, fault: str) -> None:
        super().__init__()
        kernels = {d.name: OperationType(code) for code, d in OPSET.items() if d.graphs is None}
        faults = {found.key: found for found in FAULTS}
        for name, value, known in (("operation", operation, kernels), ("fault", fault, faults)):
            if value not in known:
                raise UsageError(f"driver option {name}={value} is unknown; give one of {', '.join(known)}")
        self.arithmetic = _Wrong(operation=kernels[operation], fault=faults[fault])


DRIVER = WrongDriver
