"""Models out of wire bytes: whatever can be read as one is handed to the driver."""

from __future__ import annotations

from fuzz.attempt import Attempt
from fuzz.graphs import Changed, judged_by_rules
from fuzz.known import Known
from nnhal import wire
from nnhal.model import Model


def wire_model(data: bytes, known: Known) -> Attempt | None:
    """The model that the bytes hold, if they hold one: refused where it breaks a rule, else survived."""
    vehicles = known.vehicles
    if not vehicles:
        return None
    try:
        model = wire.loads(Model, data)
    except ValueError:
        return None
    twin = vehicles[0]
    return judged_by_rules("wire", Changed(model, f"a model of {len(data)} bytes"), twin.model, twin.runs[0][0], known)
