"""Runs a case on a device: the only module, with `harness.acting`, that calls a driver. All ends as an Outcome."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from harness.acting import Acting
from harness.answers import MalformedAnswer
from harness.case import Step, TestCase
from harness.executing import Missing, Restart
from harness.expectations import Agrees, Describes, MayReject, Repeats, Returns, Short, Supports
from harness.guards import Arena
from harness.outcome import Outcome, StepOutcome
from harness.remote import WatchedDevice
from nnhal.device import Device
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError
from nnhal.types import FL8, ErrorStatus, FeatureLevel

Numbered = tuple[int, Step]


def run(
    case: TestCase,
    device: Device,
    arena: Arena | None = None,
    *,
    in_process: bool = False,
    level: FeatureLevel = FL8,
    restart: Restart | None = None,
) -> Outcome:
    """Takes a case's steps in order, until one ends the case.

    The questions to a valid model are fixed: is it supported, prepare, execute. "Not supported" ends the case; a model
    that must be refused is asked on, since validity comes before support.

    Args:
        case: what to do.
        device: an isolated driver's proxy, or a driver itself.
        arena: memory to use again from case to case.
        in_process: the device is the driver itself, so that any exception is the driver's.
        level: at which the driver is asked.
        restart: goes on with a fresh process of the driver; may be handed the byte that its memory holds.
    """
    own = Arena() if arena is None else arena
    acting = Acting(case, device, own, in_process, level, restart)
    done: list[StepOutcome] = []
    at = 0
    try:
        for section in _sections(case.steps):
            at = section[0][0]
            if len(section) == 1:
                done.append(_take(acting, *section[0]))
            else:
                done += _take_side_by_side(acting, section)
            if any(_ends(case, case.steps[outcome.step], outcome) for outcome in done[-len(section) :]):
                break
            at = section[-1][0]
        done += _release(acting, at)
    except DriverDied as death:
        return Outcome(tuple(done), died=death.reason, at=at, log=death.log)
    except DriverTimedOut as silence:
        return Outcome(tuple(done), silent=silence.seconds, at=at, log=silence.log)
    finally:
        acting.close()
        if arena is None:
            own.close()
    return Outcome(tuple(done), at=at)


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


def _take_side_by_side(acting: Acting, section: Sequence[Numbered]) -> list[StepOutcome]:
    """Takes steps in their threads, and raises what ended the driver in any of them."""
    found: dict[int, StepOutcome] = {}
    ends: list[BaseException] = []
    gate = threading.Barrier(len({step.thread for _, step in section}))

    def work(mine: list[Numbered]) -> None:
        try:
            gate.wait()
            for number, step in mine:
                found[number] = _take(acting, number, step, alone=False)
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


def _take(acting: Acting, number: int, step: Step, *, alone: bool = True) -> StepOutcome:
    started = time.perf_counter()
    outcome = _ask(acting, number, step, alone=alone)
    return replace(outcome, seconds=time.perf_counter() - started)


def _ask(acting: Acting, number: int, step: Step, *, alone: bool) -> StepOutcome:
    try:
        return acting.take(number, step, alone=alone)
    except Missing:
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
