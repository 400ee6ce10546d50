"""A fuzzing run: targets take turns, what dies is started again, what is found is looked at, told apart and kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fuzz.covering import environment_for
from fuzz.folder import RunFolder
from fuzz.known import Known
from fuzz.merging import pruned
from fuzz.plan import SHORTEST, Plan, Way
from fuzz.progress import Progress, Standing, Tally, rows_of
from fuzz.seeds import write_dictionary
from fuzz.slices import Slice, arguments_of, order_of
from fuzz.state import Finding, State
from fuzz.targets import TARGETS
from fuzz.triage import INPUT, ORDER, RESULT, Suspect, TriageOrder
from harness.interrupting import interruptible
from harness.option_values import memory_of
from harness.process import SupervisedProcess, environment
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from random_graph.triage import SHORT

TURN_SECONDS = 0.1
PER_KIND = 3  # inputs alike that are looked at
LOOK_SECONDS = 300.0  # that a look may take
LOOK_SHARE = 0.3  # of the time of all processes that looks may take while there is time for fuzzing
NOTE_SECONDS, NOTE_SHARE = 1.0, 0.005  # between two notes of where it is: so many, or this share of the time so far
CLOSING_SECONDS, CLOSING_SHARE = 60.0, 0.1  # that looks may take behind the end: so many, or this share of the run
LEAK_SHARE = 0.1  # of a slice, for looking at inputs for leaks
MOST_FRUITLESS = 3  # turns in a row that reached nothing new, beyond which a further one changes nothing
MOST_UNUSED = 0.75  # of a turn that a target gets back, however early its process ended
STARTS = 3  # times in a row that a process of a target may fail to begin


class _Look:
    """A process that looks at a suspicious input."""

    def __init__(self, suspect: Suspect, order: TriageOrder, folder: Path) -> None:
        self.suspect, self.folder = suspect, folder
        (folder / INPUT).write_bytes(suspect.data)
        place = folder / "order"
        place.write_text(json.dumps(asdict(order)), encoding="utf-8")
        spec = DriverSpec.parse(order.driver)
        tag = f"{os.getpid()}-{os.urandom(6).hex()}"
        env = {**environment(DriverSpec("", ""), tag), **environment_for(spec), ORDER: str(place)}
        self._process = SupervisedProcess([sys.executable, "-m", "fuzz.triage"], env, tag)
        self._begun = time.monotonic()

    def poll(self) -> bool:
        """Whether it has ended."""
        self._process.listen()
        if self._process.exit is None and time.monotonic() - self._begun > LOOK_SECONDS:
            self._process.stop("takes too long")
        return self._process.exit is not None

    @property
    def seconds(self) -> float:
        """Seconds since it was begun."""
        return time.monotonic() - self._begun

    @property
    def log(self) -> str:
        """The end of what it wrote."""
        return self._process.log()[-2000:]

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


@dataclass(frozen=True)
class Ground:
    """What a run stands on.

    Attributes:
        plan: what is asked for.
        way: how the driver is fuzzed; None where there is none.
        known: of the driver.
        state: what is kept from run to run.
        folder: of this run.
    """

    plan: Plan
    way: Way | None
    known: Known | None
    state: State
    folder: RunFolder


class Campaign:
    """A run.

    Attributes:
        interrupted: it was asked to end before its time.
    """

    def __init__(self, ground: Ground, progress: Progress, standing: Standing) -> None:
        self._ground, self._progress, self._standing = ground, progress, standing
        self.interrupted = False
        self._work = Path(tempfile.mkdtemp(prefix="work-", dir=ground.folder.folder))
        self._slices: list[Slice] = []
        self._looks: list[_Look] = []
        self._suspects: list[Suspect] = []
        self._kinds: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._spent = dict.fromkeys(ground.plan.targets, 0.0)  # turns, dearer for targets that found nothing of late
        self._prices: dict[str, float] = {}  # of slices under way, by name
        self._fruitless: Counter[str] = Counter()  # turns in a row that reached nothing new
        self._ended: Counter[str] = Counter()
        self._failed_starts: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()  # inputs of slices under way that are in the tallies
        self._number = 0
        self._done = False
        self._looked_at: set[str] = set()  # kinds
        self._look_seconds = 0.0
        self._noted = 0.0
        for name in ground.plan.targets:
            standing.tallies.setdefault(name, Tally(corpus=ground.state.size(name)))

    def go(self) -> None:
        """Runs until its time is over, something is found that it waits for, or it is interrupted.

        Raises:
            UsageError: processes of a target do not begin.
        """
        try:
            with interruptible(self._interrupt):
                while not self._is_over():
                    self._turn()
                self._end_slices()
                self._drain()
                if not self.interrupted and not self._ground.plan.first:
                    self._prune()
        finally:
            self._close()

    def _drain(self) -> None:
        """Looks at one input of each kind that is left, for a while."""
        plan = self._ground.plan
        end = time.monotonic() + max(CLOSING_SECONDS, CLOSING_SHARE * plan.seconds)
        while self._suspects or self._looks:
            if self.interrupted or time.monotonic() > end or (plan.first and self._standing.new):
                break
            self._suspects = [one for one in self._suspects if one.kind not in self._looked_at]
            self._turn()
        left = {one.kind for one in self._suspects if one.kind not in self._looked_at}
        if left and not plan.first:
            number = len(left)
            self._progress.say(f"{number} more kinds of failure were seen and not looked at again; go on to see them")

    def _interrupt(self) -> None:
        """The first signal ends the run in order, the second at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def _is_over(self) -> bool:
        plan = self._ground.plan
        # However short the time is, each target has a turn.
        if self._standing.seconds >= plan.seconds and all(self._ended[name] for name in plan.targets):
            self._done = True
        if plan.first and self._standing.new:
            self._done = True
            self._suspects.clear()
        return self.interrupted or self._done

    def _turn(self) -> None:
        """One look at everything."""
        self._hand_out()
        for slice_ in list(self._slices):
            ended = slice_.poll()
            self._count(slice_)
            self._take_suspects(slice_)
            if ended:
                self._finish(slice_)
        for look in list(self._looks):
            if look.poll():
                self._take(look)
        self._show()
        time.sleep(TURN_SECONDS)

    # ---- slices

    def _hand_out(self) -> None:
        if self._suspects and not self._looks:
            suspect = self._most_wanted()
            if self._may_look(suspect):  # beside the slices: what was found should not wait for their end
                self._suspects.remove(suspect)
                self._look(suspect)
        while len(self._slices) < self._ground.plan.jobs and not (self._done or self.interrupted or self._late()):
            self._begin(self._next())

    def _most_wanted(self) -> Suspect:
        """The suspect to look at: of a kind that nobody has looked at, the most urgent among those, then the oldest."""
        return min(self._suspects, key=lambda suspect: (suspect.kind in self._looked_at, not suspect.urgent))

    def _may_look(self, suspect: Suspect) -> bool:
        """Whether a look is not at the expense of fuzzing; what ended a process is looked at in any case."""
        if self._done or self.interrupted or suspect.urgent:
            return True
        spent = (time.monotonic() - self._standing.started) * self._ground.plan.jobs
        return self._look_seconds <= LOOK_SHARE * spent

    def _late(self) -> bool:
        """Whether time is over, and each target has had a turn or has one."""
        plan = self._ground.plan
        return self._standing.seconds >= plan.seconds and all(self._turns[name] for name in plan.targets)

    def _next(self) -> str:
        """The target whose turn it is, of those that have none now.

        The one that had the least time for its weight; where turns brought nothing new, time counts more.
        """
        active = {slice_.target for slice_ in self._slices}
        plan = self._ground.plan
        among = [name for name in plan.targets if name not in active] or list(plan.targets)
        return min(among, key=lambda name: (self._spent[name], plan.targets.index(name)))

    def _begin(self, name: str) -> None:
        ground, plan = self._ground, self._ground.plan
        target, state, way = TARGETS[name], ground.state, ground.way
        self._turns[name] += 1
        price = (1.0 + min(self._fruitless[name], MOST_FRUITLESS)) / target.weight
        self._spent[name] += price
        self._number += 1
        left = int(plan.seconds - self._standing.seconds) + 1
        seconds = max(SHORTEST, min(plan.slice_seconds, left))
        words = self._work / f"words-{name}"
        if not words.exists():
            write_dictionary(target, words)
        folders = [str(state.corpus(name).resolve())]
        if not plan.bare:
            folders.append(str(state.seeds(target, ground.known or Known.nothing()).resolve()))
        digest = hashlib.sha256(f"{plan.seed}/{name}/{self._turns[name]}".encode()).digest()
        seed = int.from_bytes(digest[:4], "little") % (1 << 31) or 1
        order = order_of(
            target,
            way,
            ground.known,
            str(self._work / f"slice{self._number}"),
            folders,
            arguments_of(seconds, seed, target.longest, words),
            deadline=plan.deadline,
            memory=memory_of(plan.memory),
            checked=state.checked(name),
            edges=str(state.edges(name).resolve()),
        )
        order = replace(order, leaks=LEAK_SHARE * seconds if order.in_process else 0.0)
        log = ground.folder.folder / "driver.log"
        self._slices.append(Slice(order, way or Way("", False, True, ()), seconds, log))
        self._prices[self._slices[-1].name] = price

    def _count(self, slice_: Slice) -> None:
        """Adds what a slice has done since it was last looked at."""
        tally, key = self._standing.tallies[slice_.target], slice_.name
        reading = slice_.reading
        for name in ("inputs", "cases", "unsupported"):
            value = getattr(reading, name)
            setattr(tally, name, getattr(tally, name) + value - self._counted[f"{key} {name}"])
            self._counted[f"{key} {name}"] = value

    def _finish(self, slice_: Slice) -> None:
        """Takes a slice that has ended out, and sees whether its target can go on."""
        self._slices.remove(slice_)
        self._ended[slice_.target] += 1
        slice_.close()
        tally, name = self._standing.tallies[slice_.target], slice_.target
        tally.seconds += slice_.seconds
        unused = max(0.0, 1 - slice_.seconds / slice_.length)  # what ended early goes on the sooner
        self._spent[name] -= min(unused, MOST_UNUSED) * self._prices.pop(slice_.name)
        self._fruitless[name] = 0 if slice_.edges > tally.edges else self._fruitless[name] + 1
        tally.edges = max(tally.edges, slice_.edges)
        tally.corpus = self._ground.state.size(name)
        self._ground.state.add_checked(name, slice_.checked)
        if slice_.failed:
            tally.ends += 1
            self._failed_starts[name] += 1
            if self._failed_starts[name] >= STARTS:
                last = [line for line in slice_.failed.splitlines() if line.strip()]
                raise UsageError(f"target {name} cannot be fuzzed: {last[0]} ({last[-1].strip()[: SHORT * 4]})")
        elif slice_.reading.inputs:
            self._failed_starts[name] = 0

    def _end_slices(self) -> None:
        """Ends the slices that are under way."""
        for slice_ in list(self._slices):
            slice_.poll()
            self._count(slice_)
            self._take_suspects(slice_)
            self._finish(slice_)

    # ---- what was found

    def _take_suspects(self, slice_: Slice) -> None:
        for suspect in slice_.suspects:
            if slice_.ended:
                self._standing.tallies[slice_.target].ends += 1
            self._kinds[suspect.kind] += 1
            if self._kinds[suspect.kind] > PER_KIND:
                continue
            self._suspects.append(suspect)
        slice_.suspects.clear()

    def _look(self, suspect: Suspect) -> None:
        """Has an input looked at again."""
        ground, target = self._ground, TARGETS[suspect.target]
        self._number += 1
        folder = self._work / f"look{self._number}"
        folder.mkdir()
        plain = target.read is not None or ground.way is None or ground.known is None
        order = TriageOrder(
            folder=str(folder),
            target=suspect.target,
            driver="" if plain or ground.way is None else ground.way.text,
            known="" if plain or ground.known is None else ground.known.to_json(),
            verdict=suspect.verdict,
            cause=suspect.cause,
            stage=suspect.stage,
            message=suspect.message,
            log=suspect.log,
            deadline=ground.plan.deadline,
            memory=memory_of(ground.plan.memory),
        )
        self._looks.append(_Look(suspect, order, folder))

    def _take(self, look: _Look) -> None:
        """Counts what a look came to, and keeps it where it is new."""
        self._looks.remove(look)
        self._look_seconds += look.seconds
        self._looked_at.add(look.suspect.kind)
        log = look.log
        look.close()
        result = look.folder / RESULT
        if not result.exists():
            self._progress.say(f"an input of {look.suspect.target} could not be looked at again: {log[-300:].strip()}")
            return
        row = json.loads(result.read_text(encoding="utf-8"))
        key, target = tuple(row["key"]), look.suspect.target
        known = self._ground.state.findings.get(key)
        text = self._ground.way.text if self._ground.way else ""
        record = self._ground.folder.add(row, look.folder, known, text)
        line = f"{record.verdict} {record.cause} of {target}: {record.message.partition(chr(10))[0][:160]}"
        self._ground.state.add(Finding(key, record.id, target, line))
        if known is None:
            self._standing.new += 1
            self._standing.tallies[target].findings += 1
            self._standing.last = line
            self._progress.say(f"new finding: {line}")
        else:
            self._standing.known += 1
        shutil.rmtree(look.folder, ignore_errors=True)

    # ---- the end

    def _prune(self) -> None:
        """Takes inputs out of corpora that have grown that reach nothing the others do not."""
        ground = self._ground
        for name in ground.plan.targets:
            if ground.state.size(name) > 1.5 * ground.state.merged.get(name, 0) + 100:
                self._progress.say(f"pruning the corpus of {name}")
                pruned(ground, TARGETS[name], self._work)
                self._standing.tallies[name].corpus = ground.state.size(name)

    def _show(self) -> None:
        self._standing.active = tuple(slice_.target for slice_ in self._slices)
        self._standing.looking = len(self._looks) + len(self._suspects)
        self._progress.show()
        self._note()

    def _note(self) -> None:
        """Writes now and then where the run is: as often at its start as is worth while, then ever more seldom."""
        now = self._standing.seconds
        if now >= self._noted:
            self._noted = now + max(NOTE_SECONDS, now * NOTE_SHARE)
            self._ground.folder.note(now, self._standing.totals())

    def _close(self) -> None:
        for slice_ in self._slices:
            slice_.close()
        for look in self._looks:
            look.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(self._work)
        self._ground.folder.note(self._standing.seconds, self._standing.totals())
        self._ground.state.save()
        self._ground.folder.end(self._standing.seconds, rows_of(self._standing.tallies), interrupted=self.interrupted)
