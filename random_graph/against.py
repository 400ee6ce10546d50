"""An oracle that is another driver: it runs a graph first, and what it gives is due of the one under test.

It may be the same driver with other options, such as another resolver: optimisation off and on. See
`random_graph.oracles` for the others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.batch import NotApplicableError, SettledError
from harness.case import TestCase
from harness.case_file import seal
from harness.driver import Driver, DriverFacts, ask_facts, open_driver
from harness.expectations import Expected, Returns
from harness.guards import Arena
from harness.isolation import DEADLINE
from harness.judge import judge
from harness.outcome import Outcome
from harness.run import run
from harness.steps import Action
from harness.verdict import BAD, Cause, Judgement, Verdict
from nnhal.errors import DriverDied, DriverTimedOut, UsageError
from nnhal.loading import DriverSpec
from nnhal.types import Array
from opset.quantization import FLOATS, QUANTIZED
from random_graph.oracles import Judge, execution_of, judge_by, opened

LOG = "against.log"  # in a run's folder
BLAMED = ", against which "  # behind the name of the driver that results are held against, where that one fails


class Against:
    """An oracle: another driver, in a process of its own, whose results are due of the one under test.

    Args:
        first: the driver under test as `--driver` names it, for messages.
        second: the other one, as `--against` names it.
        log_path: file for what the other one writes.
        deadline: seconds that it gets for an answer.
        memory: limit of its address space in bytes.
        in_process: it runs in this process, for a debugger.

    Attributes:
        facts: what the other driver says of itself.

    Raises:
        UsageError: it cannot be loaded, or does not say what it is.
    """

    def __init__(
        self,
        first: str,
        second: str,
        log_path: Path,
        *,
        deadline: float = DEADLINE,
        memory: int | None = None,
        in_process: bool = False,
    ) -> None:
        self.first = first
        self.second = second
        spec = DriverSpec.parse(second)
        self.driver = open_driver(spec, log_path=log_path, deadline=deadline, memory=memory, in_process=in_process)
        self._arena = Arena()
        try:
            self.facts = _facts(self.driver, second)
        except BaseException:
            self.close()
            raise

    def __call__(self, case: TestCase) -> TestCase:
        """The case with the other driver's results as what is due, within what both are allowed together.

        Raises:
            NotApplicableError: the other driver does not do this graph.
            SettledError: it fails on it.
        """
        self._check_facts(case)
        expect = execution_of(case).expect
        assert isinstance(expect, Returns)
        free = replace(expect, outputs=tuple(opened(due) for due in expect.outputs), groups=())
        plain = _with_expectation(case, free)
        found, outcome = self._run(plain)
        if found.verdict in BAD:
            again, _ = self._run(plain, fresh=True)
            if again.verdict not in BAD:
                found = replace(found, verdict=Verdict.FLAKY)
            text = f"{self.second}{BLAMED}{self.first} is held: {found.message}"
            raise SettledError(replace(found, message=text))
        if found.verdict == Verdict.NOT_SUPPORTED:
            raise NotApplicableError(f"{self.second}, against which it is held, does not support it: {found.message}")
        done = next(o for o in outcome.steps if case.steps[o.step].action == Action.EXECUTE)
        outputs = tuple(self._held(due, got) for due, got in zip(expect.outputs, done.outputs, strict=True))
        detail = f"{self.first} against {self.second}"
        detail = f"{case.origin.detail}; {detail}" if case.origin.detail else detail
        made = _with_expectation(case, replace(expect, outputs=outputs))
        return seal(replace(made, origin=replace(case.origin, detail=detail)))

    def _check_facts(self, case: TestCase) -> None:
        facts = self.facts
        if case.level > facts.level:
            text = f"it needs level {case.level.version}; {self.second}, against which it is held, is of "
            raise NotApplicableError(f"{text}{facts.level.version}")
        for need in case.needs:
            if not getattr(facts.traits, need):
                text = f"{self.second}, against which it is held, does not declare {need.replace('_', ' ')}"
                raise NotApplicableError(text)

    def _run(self, case: TestCase, *, fresh: bool = False) -> tuple[Judgement, Outcome]:
        """What comes of a case with the other driver, in its present process or in a fresh one."""
        try:
            if fresh:
                self.driver.restart()
            level, in_process = self.facts.level, self.driver.in_process
            outcome = run(case, self.driver.device, self._arena, in_process=in_process, level=level)
        except (UsageError, DriverDied, DriverTimedOut) as error:  # it could be loaded before
            text = f"does not start again: {error}"
            return Judgement(Verdict.CRASH, Cause.DIED, "start", text), Outcome(())
        return judge(case, outcome), outcome

    def _held(self, due: Expected, got: Array | None) -> Expected:
        """What is due of an output of the driver under test; of one that is drawn at random its distribution."""
        if got is None or due.distribution is not None:
            return due
        name = f"{due.name}, {self.first} against {self.second}"
        exact = due.exact and due.type in (FLOATS | QUANTIZED)
        value, required = got.astype(np.float64), 2 * due.required
        return replace(due, name=name, value=value, required=required, unit=None, exact=exact)

    def close(self) -> None:
        """Ends the other driver."""
        self.driver.close()
        self._arena.close()

    def __enter__(self) -> Against:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def of_second(second: str, message: str) -> bool:
    """Whether the message of a failure is on the driver that results are held against.

    Args:
        second: that driver as `--against` names it; empty where there is none.
        message: of a judgement or record.
    """
    return bool(second) and message.startswith(f"{second}{BLAMED}")


def _facts(driver: Driver, text: str) -> DriverFacts:
    """What a driver says of itself.

    Raises:
        UsageError: it cannot be loaded, or says nothing of use.
    """
    device = driver.device
    try:
        return ask_facts(device)
    except Exception as error:
        raise UsageError(f"driver {text!r} does not say what it is: {error}") from None


def _with_expectation(case: TestCase, expect: Returns) -> TestCase:
    steps = tuple(replace(s, expect=expect) if s.action == Action.EXECUTE else s for s in case.steps)
    return replace(case, steps=steps)


def compare(case: TestCase, first: Judge, second: Against) -> Judgement:
    """How a driver does against another one on one graph.

    Args:
        case: of the graph.
        first: runs and judges a case on the driver under test, such as `harness.probing.prober(driver)`.
        second: the other driver.
    """
    return judge_by(second, first)(case)
