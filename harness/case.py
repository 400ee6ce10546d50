"""One test case: models, steps and what is due at each. Frozen and complete; `harness.case_file` saves it."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.expectations import Expectation, Rejects, Returns
from harness.steps import Action, How
from nnhal.model import Model
from nnhal.types import FL1, Array, ExecutionMode, FeatureLevel

EXTENSION = "extension "  # what names a vendor extension in a case's needs begins with


@dataclass(frozen=True)
class Step:
    """One thing asked of the driver.

    Attributes:
        model: index of the case's model.
        inputs: stored values for an execution, in the order of the model's input list; None where omitted. The value
            of a copy into a buffer.
        client: which client asks, where a case has several.
        thread: which thread of the client asks. Neighbouring steps of threads other than 0 go on side by side; those
            of one thread in order.
        slot: number of the object that the step makes or uses, among those of its kind; None takes the model's index.
        how: what goes with the call; None for the defaults.
    """

    action: Action
    model: int = 0
    expect: Expectation = field(default_factory=Returns)
    mode: ExecutionMode = ExecutionMode.SYNCHRONOUS
    inputs: tuple[Array | None, ...] = ()
    client: int = 0
    thread: int = 0
    slot: int | None = None
    how: How | None = None

    @property
    def place(self) -> int:
        """The slot."""
        return self.model if self.slot is None else self.slot


@dataclass(frozen=True)
class Origin:
    """Where a case comes from: what its id is made of, and enough to make it again.

    Attributes:
        operation: name of the operation, or of what else is tested.
        signature: its signature's id, with dots.
        kind: `example`, `drawn`, `broken`, `mutated`.
        number: within the kind.
        rule: label of the rule that a negative case breaks.
        detail: shapes, parameters and seed in words, for messages.
    """

    operation: str
    signature: str
    kind: str
    number: int
    mode: str = "sync"
    rule: str = ""
    detail: str = ""
    seed: str = ""

    @property
    def batch(self) -> str:
        """The id without the number: cases that differ only in it are one pytest item."""
        return f"{self.operation}-{self.signature}-{self.mode}-{self.kind}"


@dataclass(frozen=True)
class TestCase:
    """Models and the steps to take with them. After it is made no later stage looks anything up.

    Attributes:
        level: the level that a driver needs to be asked; a driver below it is NOT_APPLICABLE.
        until: the level that lifts the rule which a negative case breaks; a driver at or above it is NOT_APPLICABLE.
        highest: the highest level that has what the case asks for.
        needs: traits that a driver has to declare (`caching`, `buffers`, `dynamic_shapes`), and extensions that it has
            to list (`extension NAME`).
        observe: what the record is to say beside the verdict: `first_run`, `bits`.
    """

    __test__ = False  # not a pytest class

    origin: Origin
    models: tuple[Model, ...]
    steps: tuple[Step, ...]
    level: FeatureLevel = FL1
    until: FeatureLevel | None = None
    digest: str = ""
    highest: FeatureLevel | None = None
    needs: tuple[str, ...] = ()
    observe: tuple[str, ...] = ()

    @property
    def negative(self) -> bool:
        """Whether something invalid must be refused."""
        return any(isinstance(step.expect, Rejects) and not step.expect.valid for step in self.steps)

    @property
    def id(self) -> str:
        """Name of the case: operation, signature, mode, kind, number, and a digest of the content."""
        return f"{self.origin.batch}-{self.origin.number}-{self.digest}"
