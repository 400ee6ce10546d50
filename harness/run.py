"""Runs a case on a device: the only module, with `harness.acting`, that calls a driver. All ends as an Outcome."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from harness.acting import Acting
from harness.answers import MalformedAnswer
from harness.case import Step, TestCase
from harness.client import ReleasedError
from harness.executing import Missing, Restart
from harness.expectations import Agrees, Describes, MayReject, Repeats, Returns, Short, Supports
from harness.guards import Arena
from harness.outcome import Outcome, StepOutcome
from harness.remote import WatchedDevice
from nnhal.device import Device
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError
from nnhal.model import Model
from nnhal.types import FL8, ErrorStatus, FeatureLevel

Numbered = tuple[int, Step]
Watch = Callable[[str, Model | None], AbstractContextManager[None]]
RELEASE = "release"


def _unwatched(stage: str, model: Model | None) -> AbstractContextManager[None]:
    return nullcontext()


class Course:
    """A case under way. Use as a context.

    Args:
        case: what to do.
        device: an isolated driver's proxy, or a driver itself.
        arena: memory to use again from case to case.
        in_process: the device is the driver itself, so that any exception is the driver's.
        level: at which the driver is asked.
        restart: goes on with a fresh process of the driver; may be handed the byte that its memory holds.
        watch: is told of each step before it is taken, by the name of its action and the model that it is about, and
            gives a context that lasts as long as the step; the end is told as `release`.
    """

    def __init__(
        self,
        case: TestCase,
        device: Device,
        arena: Arena | None = None,
        *,
        in_process: bool = False,
        level: FeatureLevel = FL8,
        restart: Restart | None = None,
        watch: Watch = _unwatched,
    ) -> None:
        self._case = case
        self._own = arena is None
        self._arena = Arena() if arena is None else arena
        self._acting = Acting(case, device, self._arena, in_process, level, restart)
        self._watch = watch
        self._done: list[StepOutcome] = []
        self._at = 0
        self._ended: Outcome | None = None

    def __enter__(self) -> Course:
        return self

    def __exit__(self, *exception: object) -> None:
        self._acting.close()
        if self._own:
            self._arena.close()

    def go(self, steps: Sequence[Step] | None = None) -> bool:
        """Takes steps in order, until one ends the case; False when one did.

        Args:
            steps: the first ones of the case; all when None.
        """
        return self._guarded(lambda: self._go(self._case.steps if steps is None else steps))

    def _go(self, steps: Sequence[Step]) -> bool:
        return all(self._take(section) for section in _sections(steps))

    def _take(self, section: Sequence[Numbered]) -> bool:
        self._at = section[0][0]
        if len(section) == 1:
            self._done.append(_take(self._acting, *section[0], self._watch))
        else:
            self._done += _take_side_by_side(self._acting, section, self._watch)
        steps = self._case.steps
        if any(_ends(self._case, steps[outcome.step], outcome) for outcome in self._done[-len(section) :]):
            return False
        self._at = section[-1][0]
        return True

    def again(self) -> Outcome:
        """The outcome with the last step of the case taken once more; what came of it before is forgotten."""
        last = len(self._case.steps) - 1
        self._done = [outcome for outcome in self._done if outcome.step != last]
        self._guarded(lambda: self._take([(last, self._case.steps[last])]))
        return self.outcome

    def end(self) -> Outcome:
        """Lets the driver's objects go; gives the outcome of all."""
        if self._ended is None:
            self._guarded(self._release)
        return self.outcome

    def _release(self) -> bool:
        with self._watch(RELEASE, None):
            self._done += _release(self._acting, self._at)
        return True

    def _guarded(self, act: Callable[[], bool]) -> bool:
        """Does something with the driver; False when that was its end."""
        if self._ended is not None:
            return False
        try:
            return act()
        except DriverDied as death:
            self._ended = Outcome(tuple(self._done), died=death.reason, at=self._at, log=death.log)
        except DriverTimedOut as silence:
            self._ended = Outcome(tuple(self._done), silent=silence.seconds, at=self._at, log=silence.log)
        return False

    @property
    def outcome(self) -> Outcome:
        """What came of it so far."""
        return self._ended or Outcome(tuple(self._done), at=self._at)


def run(
    case: TestCase,
    device: Device,
    arena: Arena | None = None,
    *,
    in_process: bool = False,
    level: FeatureLevel = FL8,
    restart: Restart | None = None,
) -> Outcome:
    """Takes a case's steps in order, until one ends the case. The arguments are those of `Course`.

    The questions to a valid model are fixed: is it supported, prepare, execute. "Not supported" ends the case; a model
    that must be refused is asked on, since validity comes before support.
    """
    with Course(case, device, arena, in_process=in_process, level=level, restart=restart) as course:
        course.go()
        return course.end()


def _sections(steps: Sequence[Step]) -> Iterator[list[Numbered]]:
    """Steps one by one; neighbours that are of threads other than 0 together."""
    together: list[Numbered] = []
    for number, step in enumerate(steps):
        if step.thread:
            together.append((number, step))
            continue
        if together:
            yield together
            together = []
        yield [(number, step)]
    if together:
        yield together


def _take_side_by_side(acting: Acting, section: Sequence[Numbered], watch: Watch) -> list[StepOutcome]:
    """Takes steps in their threads, and raises what ended the driver in any of them."""
    found: dict[int, StepOutcome] = {}
    ends: list[BaseException] = []
    gate = threading.Barrier(len({step.thread for _, step in section}))

    def work(mine: list[Numbered]) -> None:
        try:
            gate.wait()
            for number, step in mine:
                found[number] = _take(acting, number, step, watch, alone=False)
        except BaseException as error:  # raised again below, in the caller's thread
            ends.append(error)

    by_thread: dict[int, list[Numbered]] = {}
    for number, step in section:
        by_thread.setdefault(step.thread, []).append((number, step))
    threads = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in by_thread.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(ends, key=lambda e: not isinstance(e, DriverTimedOut)):  # silence is why others saw a death
        raise error
    return [found[number] for number, _ in section]


def _ends(case: TestCase, step: Step, outcome: StepOutcome) -> bool:
    """Whether nothing more is to be asked."""
    if outcome.status is None:
        return not outcome.skipped
    expect = step.expect
    if isinstance(expect, (Returns, Describes, Repeats, Agrees)):
        unless = expect.unless if isinstance(expect, Returns) else ()
        if outcome.status != ErrorStatus.NONE:
            return not case.negative and outcome.status not in unless
        return not all(outcome.supported) and not case.negative
    if isinstance(expect, Short):
        return outcome.status != ErrorStatus.OUTPUT_INSUFFICIENT_SIZE and outcome.status not in expect.unless
    if isinstance(expect, Supports):
        return outcome.status == ErrorStatus.NONE and expect.alike and not all(outcome.supported)
    return isinstance(expect, MayReject) and outcome.status != ErrorStatus.NONE


def _take(acting: Acting, number: int, step: Step, watch: Watch, *, alone: bool = True) -> StepOutcome:
    started = time.perf_counter()
    with watch(step.action.value, acting.case.models[step.model] if acting.case.models else None):
        outcome = _ask(acting, number, step, alone=alone)
    return replace(outcome, seconds=time.perf_counter() - started)


def _ask(acting: Acting, number: int, step: Step, *, alone: bool) -> StepOutcome:
    try:
        return acting.take(number, step, alone=alone)
    except (Missing, ReleasedError):
        return StepOutcome(number, None, skipped=True)
    except MalformedAnswer as answer:
        return StepOutcome(number, answer.status, malformed=answer.text)
    except DriverError as error:
        return StepOutcome(number, error.status, error.message)
    except UncleanError as error:
        return StepOutcome(number, None, unclean=str(error), trace=error.trace)
    except (DriverDied, DriverTimedOut, SuiteError):
        raise
    except Exception as error:
        if not acting.in_process:
            raise SuiteError(f"{type(error).__name__} in the suite while a step ran: {error}") from error
        return StepOutcome(number, None, unclean=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


def _release(acting: Acting, number: int) -> list[StepOutcome]:
    """Lets the driver's objects go; an exception of a driver in this process counts to the last step."""
    closings = [
        *(burst.close for burst in acting.bursts.values()),
        *(buffer.close for buffer in acting.buffers.values()),
        *(prepared.close for prepared in acting.prepared.values()),
    ]
    trouble = [found for close in closings if (found := _close(acting, number, close))]
    if acting.callbacks and isinstance(acting.device, WatchedDevice):
        acting.device.connection.check()  # takes late notifications
    for callback in acting.callbacks.values():
        if callback.notifications > 1:
            text = f"the callback of an execution was notified {callback.notifications} times, once is due"
            trouble.append(StepOutcome(number, ErrorStatus.NONE, malformed=text))
    return trouble


def _close(acting: Acting, number: int, close: Callable[[], None]) -> StepOutcome | None:
    if not acting.in_process:
        close()
        return None
    try:
        close()
    except Exception as error:
        words = f"{type(error).__name__}: {error} (in close)"
        return StepOutcome(number, None, unclean=words, trace=traceback.format_exc())
    return None
