"""Draws operands of recurrent cells: sums about as large as the gates can tell, clips that clip."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nnhal.types import LstmActivation, OperandType
from opset.drawing import Draft
from opset.recurrent_cell import BIASES, GATES, PEEPHOLES

GAIN = 1.8  # how large weighted sums get, in the mean, against their operands
LONGEST = 5  # steps of a drawn sequence
SMALLEST_NORM = 3  # units under layer normalisation: fewer have variances near 0 too often


@dataclass(frozen=True)
class Frame:
    """The sizes that the operands of one operation share."""

    steps: int
    batch: int
    inputs: int
    time_major: bool = True

    def sequence(self, size: int) -> tuple[int, int, int]:
        """Shape of a sequence of vectors."""
        return (self.steps, self.batch, size) if self.time_major else (self.batch, self.steps, size)


def coarse(draft: Draft) -> bool:
    """Whether the draw is of float16: long sums and sequences would allow errors as large as what they sum."""
    return draft.type("input") == OperandType.TENSOR_FLOAT16


def draw_frame(draft: Draft, steps: int = LONGEST) -> Frame:
    """Small sizes; at times a batch that makes enough results for limits on the mean."""
    half = coarse(draft)
    batch = draft.integer(*draft.choose(((1, 3), (3, 8)) if half else ((1, 3), (1, 3), (1, 6))))
    if half:
        steps = min(steps, draft.choose((1, 2, 3)))
    return Frame(draft.integer(1, steps), batch, draft.integer(1, 3 if half else 6), draft.chance(50))


def draw_units(draft: Draft, least: int = 1) -> int:
    """Number of units of a cell."""
    return draft.integer(least, draft.choose((3, 4, 5) if coarse(draft) else (4, 6, 9)))


def draw_outputs(draft: Draft, units: int) -> int:
    """Number of outputs of a cell with a projection; at times one for each unit."""
    return draft.integer(1, 3 if coarse(draft) else 5) if draft.chance(75) else units


def weights(draft: Draft, name: str, shape: tuple[int, ...], gain: float = GAIN) -> None:
    """Weights [units, size] whose sums do not grow with their number."""
    reach = gain / math.sqrt(shape[1])
    draft.tensor(name, shape, low=-reach, high=reach)


def draw_scalars(draft: Draft, projected: bool) -> None:
    """The activation, and clips that clip in most calls; without a projection its clip must change nothing."""
    draft.scalar("activation", int(draft.choose(tuple(LstmActivation))))
    draft.scalar("cell_clip", draft.real(0.5, 1.5) if draft.chance(45) else 0.0)
    clip = draft.chance(55 if projected else 25)
    draft.scalar("proj_clip", draft.real(*((0.2, 0.6) if coarse(draft) else (0.1, 0.45))) if clip else 0.0)


def draw_cell(draft: Draft, frame: Frame, prefix: str = "", aux: int = 0,
              states: tuple[str, str] = ("output_state_in", "cell_state_in"),
              sizes: tuple[int, int] | None = None) -> bool:  # fmt: skip
    """Draws the operands of a cell but for its input and scalars.

    Args:
        aux: size of the auxiliary input that has weights of its own; 0 for none.
        states: names of the output state and the cell state.
        sizes: units and outputs of a cell without layer normalisation; drawn when None.

    Returns:
        Whether the cell has a projection.
    """
    cifg, peephole, project = draft.chance(35), draft.chance(45), draft.chance(55)
    norm = not sizes and draft.has(f"{prefix}input_layer_norm_w") and draft.chance(25 if coarse(draft) else 40)
    if sizes:
        units, outputs = sizes
        project |= units != outputs
    else:
        units = draw_units(draft, SMALLEST_NORM if norm else 1)
        outputs = draw_outputs(draft, units) if project else units
    for gate in GATES:
        absent = cifg and gate == "input"
        _gate_weights(draft, prefix, gate, units, {"input": frame.inputs, "recurrent": outputs}, absent=absent)
        vector(draft, prefix + BIASES[gate], units, 2.0 if gate == "cell" else 1.5, absent=absent)
        if draft.has(f"{prefix}aux_input_to_{gate}_w"):
            _gate_weights(draft, prefix, gate, units, {"aux_input": aux}, absent=absent or not aux)
        if draft.has(f"{prefix}{gate}_layer_norm_w"):
            vector(draft, f"{prefix}{gate}_layer_norm_w", units, 2.0, absent=absent or not norm)
    for gate in PEEPHOLES:
        vector(draft, f"{prefix}cell_to_{gate}_w", units, 2.6, absent=not peephole or (cifg and gate == "input"))
    if project:
        weights(draft, f"{prefix}projection_w", (outputs, units))
    else:
        draft.omit(f"{prefix}projection_w")
    vector(draft, f"{prefix}projection_bias", outputs, 0.5, absent=not project or draft.chance(35))
    draft.tensor(states[0], (frame.batch, outputs), low=-1.5, high=1.5)
    draft.tensor(states[1], (frame.batch, units))
    return project


def _gate_weights(draft: Draft, prefix: str, gate: str, units: int, sources: dict[str, int], *, absent: bool) -> None:
    for source, size in sources.items():
        name = f"{prefix}{source}_to_{gate}_w"
        if absent:
            draft.omit(name)
        else:
            weights(draft, name, (units, size))


def vector(draft: Draft, name: str, size: int, reach: float, *, absent: bool = False) -> None:
    """A vector of numbers of both signs, or nothing."""
    if absent:
        draft.omit(name)
    else:
        draft.tensor(name, (size,), low=-reach, high=reach)
