"""Runs a scene: starts driver and clients, watches and disturbs them, and gathers what is known at the end.

Nothing here judges. Whatever happens, all processes are gone when `run` returns.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from harness.client import MOST_DEADLINES
from harness.greeting import Unready
from harness.guards import Arena
from harness.isolation import IsolatedDriver
from harness.judge import judge
from harness.process import tagged
from harness.run import run
from harness.verdict import Verdict
from nnhal.errors import DriverDied, SuiteError, UsageError
from nnhal.loading import DriverSpec
from nnhal.types import FeatureLevel
from stress.board import Count, Place, Slot, total
from stress.clients import ClientProcess
from stress.disturbances import ACTS
from stress.evidence import DriverEnd, Evidence, Silence
from stress.order import Order, Service
from stress.processes import culprit, held, is_stopped, timed
from stress.scene import HOSTILE, Disturbance, Scene

TICK = 0.05  # seconds between two looks, where nothing else wakes it
START_SECONDS = 60.0  # for a client to be ready
LATE = 0.5  # seconds beyond a limit, before the client that should have told of it is taken to hang
END_SECONDS = 3.0  # for clients to end when the run is decided, and for a driver to end when it is let go
FROZEN = 0.5  # seconds without a beat, after which nothing in a client runs
CATCH_UP = 0.3  # seconds for clients to say what they saw, after the driver's end


class Supervision:
    """One run of a scene.

    Args:
        scene: what is to happen.
        spec: the driver.
        seed: decides what is drawn.
        deadline: seconds for a call of the driver.
        level: at which it is tested.
        log_path: file that gets all output of the driver and of the clients.
        load_deadline: seconds for the driver to be ready.
        native: native stacks of what hangs are taken, where gdb is installed.
        show: is called now and then with what is known so far.
    """

    def __init__(
        self,
        scene: Scene,
        spec: DriverSpec,
        *,
        seed: str = "0",
        deadline: float = 10.0,
        level: int = int(max(FeatureLevel)),
        log_path: Path | None = None,
        load_deadline: float = 60.0,
        native: bool = True,
        show: Callable[[Supervision], None] = lambda supervision: None,
    ) -> None:
        self.scene, self.spec, self.seed, self.deadline, self.level = scene, spec, seed, deadline, level
        self.evidence = Evidence()
        self.clients: list[ClientProcess] = []
        self.driver: IsolatedDriver | None = None
        self.start = 0.0
        self.held = 0  # bytes of address space that the driver had when it began
        self._log_path, self._load_deadline, self._native, self._show = log_path, load_deadline, native, show
        self._rng = random.Random(f"{seed}/{scene.name}")
        self._tag = f"{os.getpid()}-stress-{os.urandom(6).hex()}"
        self._kills: list[tuple[float, ClientProcess]] = []
        self._acts: list[tuple[float, Disturbance]] = []
        self._sampled = 0.0
        self._decided = False
        self._restarts = 0
        self._end = DriverEnd()

    # ---- from start to end

    def run(self) -> Evidence:
        """Runs it and gives what is known."""
        before = held()
        try:
            if self._load() and self._start_clients():
                self._go()
                self._ask_once_more()
        finally:
            self._end_clients()
            self._end_driver()
        self.evidence.leftovers = self._leftovers(before)
        return self.evidence

    @property
    def now(self) -> float:
        """Seconds from the start of the run; before it, 0."""
        return time.monotonic() - self.start if self.start else 0.0

    @property
    def executions(self) -> int:
        """Executions of all clients so far."""
        return self._counted(Count.EXECUTIONS)

    def _counted(self, what: Count) -> int:
        return sum(total(list(client.slots()), what) for client in self.clients)

    def mark(self, words: str) -> None:
        """Notes what happened now."""
        self.evidence.marks.append((round(self.now, 3), words))

    # ---- the driver

    def _load(self) -> bool:
        if not self.scene.service:
            return True
        try:
            self.driver = self._start_driver()
        except Unready as trouble:
            if trouble.silent is not None:
                self.evidence.silence = Silence(0.0, True, -1, -1, "load", trouble.silent)
            self._end = DriverEnd(0.0, trouble.exit, str(trouble), loading=True, step="load", log=trouble.log)
            return False
        except UsageError as trouble:  # it could be loaded before
            self._end = DriverEnd(0.0, None, str(trouble), loading=True, refused=True, step="load")
            return False
        return True

    def _start_driver(self) -> IsolatedDriver:
        return IsolatedDriver(
            self.spec,
            deadline=self.deadline,
            log_path=self._log_path,
            spare=False,
            load_deadline=self._load_deadline,
            tag=self._tag,
        )

    def restart_driver(self) -> None:
        """Goes on with a fresh process of the driver; the clients are told where it is."""
        if self.driver is None:
            return
        old, begun = self.driver, time.monotonic()
        old.close()
        self._restarts += 1
        self.mark("the driver is started again")
        try:
            self.driver = self._start_driver()
        except UsageError as trouble:
            self.driver, self._decided = None, True
            self._end = DriverEnd(self.now, None, f"does not start again: {trouble}", loading=True, step="load")
            return
        self.evidence.numbers["restart_seconds"] = round(time.monotonic() - begun, 4)
        for client in self.clients:
            client.move(self.service)

    @property
    def service(self) -> Service:
        """Where the driver is."""
        if self.driver is None:
            raise SuiteError("a scene in process has no service")
        return Service(self.driver.hello.name, self.driver.pid)

    def _driver_is_gone(self) -> bool:
        if self.driver is None or not self.scene.service:
            return False
        process = self.driver.process
        process.listen()
        return process.exit is not None

    # ---- the clients

    def _start_clients(self) -> bool:
        """Starts all, waits until they are ready; False when one is not."""
        number = 0
        for group in self.scene.groups:
            members = []
            for _ in range(group.processes):
                order = Order(
                    self.spec.text,
                    group.activity,
                    None if group.in_process else self.service,
                    group.parameters,
                    group.threads,
                    f"{self.seed}/{self.scene.name}",
                    number,
                    self.deadline,
                    self.level,
                    group.rest,
                    group.patient,
                    group.hook,
                    group.hooking,
                )
                members.append(ClientProcess(order, group, self.spec, f"{self._tag}.c{number}.", self._log_path))
                number += 1
            self.clients += members
            low, high = group.window
            for client in self._rng.sample(members, group.killed):
                self._kills.append((self.scene.seconds * self._rng.uniform(low, high), client))
        self._kills.sort(key=lambda kill: kill[0])
        self._acts = [(act.first * self.scene.seconds, act) for act in self.scene.disturbances]
        end = time.monotonic() + START_SECONDS
        while not all(client.ready or (client.group.role == HOSTILE and not client.alive) for client in self.clients):
            self._wait(TICK)
            self._listen()
            if self._judge_start(time.monotonic() > end):
                return False
        return True

    def _judge_start(self, late: bool) -> bool:
        """Whether the run is over before it has begun."""
        if self._driver_is_gone():
            self._note_death(0.0)
            return True
        slow = [client for client in self.clients if not client.ready and client.group.role != HOSTILE]
        if any(not client.alive or client.refused or client.nonsense or client.closed for client in slow):
            return True
        for client in slow:
            place = client.slots()[0]
            limit = self._load_deadline if place.place == Place.DRIVER else place.limit or START_SECONDS
            if place.since and time.monotonic() > place.since + limit and place.place != Place.IDLE:
                self._hang(client, place)
                return True
        if late and slow:
            self._hang(slow[0], slow[0].slots()[0])
        return late

    # ---- the run

    def _go(self) -> None:
        self.start = self.evidence.start = time.monotonic()
        with contextlib.suppress(psutil.Error):
            self.held = psutil.Process(self.driver.pid).memory_info().vms if self.driver is not None else 0
        for client in self.clients:
            client.go(self.start + self.scene.seconds)
        while not self._decided:
            self._wait(min(TICK, self._next()))
            self._listen()
            self._kill_as_planned()
            self._disturb()
            self._sample()
            self._watch()
            self._show(self)
            if not any(self._under_way(client) for client in self.clients):
                break
        self.evidence.seconds = self.now

    def _under_way(self, client: ClientProcess) -> bool:
        """Whether a client's end is waited for."""
        if not client.alive:
            return False
        return client.group.role != HOSTILE or self.now < self.scene.seconds

    def _next(self) -> float:
        """Seconds to what happens next by plan."""
        due = [at for at, _ in (*self._kills[:1], *self._acts)]
        return max(0.0, min(due, default=math.inf) - self.now)

    def _wait(self, seconds: float) -> None:
        poller = select.poll()
        for client in self.clients:
            if client.alive:
                poller.register(client.process.control, select.POLLIN)
                if not client.closed and not client.nonsense:
                    poller.register(client.channel, select.POLLIN)
        if self.driver is not None and self.driver.process.exit is None:
            poller.register(self.driver.process.control, select.POLLIN)
        poller.poll(max(1, int(seconds * 1000)))

    def _listen(self) -> None:
        now = time.monotonic()
        for client in self.clients:
            client.listen(now, self.start or now)

    def _kill_as_planned(self) -> None:
        while self._kills and self._kills[0][0] <= self.now:
            _, client = self._kills.pop(0)
            if client.alive:
                client.killed = True
                client.kill()
                self.mark(f"client {client.number} is killed")

    def _disturb(self) -> None:
        for place, (at, act) in enumerate(self._acts):
            if at <= self.now:
                again = at + act.every * self.scene.seconds
                goes_on = act.every and again <= act.last * self.scene.seconds
                self._acts[place] = (again if goes_on else float("inf"), act)
                ACTS[act.act](self, act.value)

    def _sample(self) -> None:
        now = self.now
        if now < self._sampled:
            return
        self._sampled = now + self.scene.sampling
        pid = self.driver.pid if self.driver is not None else next((c.pid for c in self.clients if c.alive), 0)
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            found = timed(pid, now, self.executions, self._counted(Count.NANOSECONDS) / 1e9)
            self.evidence.samples.append(found)

    # ---- watching

    def _watch(self) -> None:
        """Looks for what decides the run before its time is over."""
        if self._driver_is_gone():
            seen = self.now
            self._catch_up()
            self._note_death(seen)
            self._decided = True
            return
        for client in self.clients:
            if client.group.role == HOSTILE:
                continue
            if client.silent is not None:
                self._take_silence(client)
            elif client.died is not None:
                seen = self.now
                self._catch_up_with_driver()
                self._note_death(seen, str(client.died.get("reason"))[:300])
                self._decided = True
            elif client.suite or client.nonsense or (client.closed and not client.done and self._stays(client)):
                self._decided = True
            elif not client.alive and not (client.done or client.killed):
                self._catch_up()
                self._decided = True
            elif client.alive and not client.killed:
                self._look_for_silence(client)
            if self._decided:
                return

    def _stays(self, client: ClientProcess) -> bool:
        """Whether a client that closed its connection is still there a little later: others are just about to end."""
        end = time.monotonic() + LATE
        while client.alive and time.monotonic() < end:
            client.process.wait(TICK)
        self._listen()
        return client.alive

    def _catch_up(self) -> None:
        """Lets clients say what they saw of an end."""
        end = time.monotonic() + CATCH_UP
        while time.monotonic() < end and any(c.alive and c.died is None and c.in_driver() for c in self.clients):
            self._wait(TICK)
            self._listen()

    def _catch_up_with_driver(self) -> None:
        """Waits for the driver's process to end, whose death a client has seen first."""
        if self.driver is not None:
            self.driver.process.wait(CATCH_UP)

    def _note_death(self, seen: float, told: str = "") -> None:
        """Notes how the driver's process ended, or what a client told of it where it goes on."""
        if self.driver is None:
            return
        process = self.driver.process
        reason = process.reason if process.exit is not None else f"goes on, and {told}"
        steps = [str(client.died.get("step")) for client in self.clients if client.died is not None]
        steps += [_doing(client) for client in self.clients if client.in_driver()]
        self._end = DriverEnd(
            seen,
            process.exit,
            reason,
            step=steps[0] if steps else "",
            strays=process.strays,
            log=process.log(),
            restarts=self._restarts,
        )

    def _take_silence(self, client: ClientProcess) -> None:
        """A client waits for the driver's service in vain."""
        at, words = self.now, client.silent or {}
        seconds, thread = words.get("seconds"), words.get("thread")
        stopped, stacks = False, ""
        if self.driver is not None:
            process = self.driver.process
            stopped = is_stopped(process.pid)
            stacks = process.stop("does not answer", stacks=True, native=self._native)
        self.evidence.silence = Silence(
            at,
            True,
            client.number,
            thread if isinstance(thread, int) else -1,
            str(words.get("step")),
            float(seconds) if isinstance(seconds, (int, float)) else 0.0,
            stopped,
            stacks,
        )
        self._decided = True

    def _look_for_silence(self, client: ClientProcess) -> None:
        """A client's thread is somewhere for too long, or the client as a whole does not run."""
        now = time.monotonic()
        slots = client.slots()
        # What a thread has noted shows that the client runs as a beat does, which may have to wait for its turn.
        beat = max(client.beat(), client.ready_at, self.start, *(min(slot.since, now) for slot in slots))
        if now > beat + FROZEN:
            slots = (culprit(client, slots, now),)
            if now > beat + self._allowed(client, beat, self.deadline):
                self._hang(client, slots[0])
                return
        else:
            client.frozen = None
        for slot in slots:
            if slot.overdue(now) <= 0:
                continue
            waits = slot.place == Place.DRIVER and not client.group.in_process
            # Who waits for the driver tells of it; if not, it hangs itself.
            allowed = slot.limit + LATE if waits else self._allowed(client, slot.since, slot.limit)
            if now > slot.since + allowed:
                self._hang(client, slot)
                return

    def _allowed(self, client: ClientProcess, since: float, limit: float) -> float:
        """Seconds that a client may take for something, by how much of the processor it got."""
        return limit * (MOST_DEADLINES if client.usage.starved(since, time.monotonic()) else 1)

    def _hang(self, client: ClientProcess, slot: Slot) -> None:
        """A client's process hangs: its stacks are taken, and it is ended."""
        now = time.monotonic()
        driver = client.group.in_process and slot.place == Place.DRIVER
        idents = [found.ident for found in client.slots()]
        thread = idents.index(slot.ident) if slot.ident in idents else -1
        seconds = now - slot.since if slot.since else 0.0
        at, stopped = self.now, is_stopped(client.pid)
        client.stopped = True
        stacks = client.process.stop("does not go on", stacks=True, native=self._native)
        text = slot.text or "its start"
        self.evidence.silence = Silence(at, driver, client.number, thread, text, seconds, stopped, stacks)
        self._decided = True

    # ---- the end

    def _ask_once_more(self) -> None:
        """The driver must still answer when all clients are gone."""
        case, driver = self.scene.probe, self.driver
        if case is None or driver is None or self._decided or self._driver_is_gone():
            return
        with contextlib.closing(Arena()) as arena:
            try:
                device = driver.connect()
            except DriverDied as death:
                self.evidence.probe = f"it takes no further client: {death}"
                return
            outcome = run(case, device, arena, level=FeatureLevel(self.level))
        judgement = judge(case, outcome)
        if outcome.silent is not None:
            self.evidence.silence = Silence(self.now, True, -1, -1, "the last question", outcome.silent)
        elif self._driver_is_gone():
            self._note_death(self.now)
        elif judgement.verdict not in (Verdict.PASS, Verdict.POOR, Verdict.NOT_SUPPORTED):
            self.evidence.probe = judgement.message or judgement.verdict.value

    def _end_clients(self) -> None:
        for client in self.clients:
            if client.alive:
                client.stop()
        end = time.monotonic() + (END_SECONDS if self.start else 0.2)
        while time.monotonic() < end and any(client.alive for client in self.clients):
            with contextlib.suppress(Exception):
                self._wait(TICK)
                self._listen()
        evidence = self.evidence
        for client in self.clients:
            if client.alive:
                client.stopped = True
            evidence.failures += client.failures if client.group.role != HOSTILE else []
            evidence.failed += client.failed if client.group.role != HOSTILE else 0
            evidence.unsupported.update(client.unsupported)
            evidence.clients.append(client.end())
        evidence.failures.sort(key=lambda failure: failure.at)
        self.clients = []

    def _end_driver(self) -> None:
        driver, self.driver = self.driver, None
        if driver is None:
            self.evidence.driver = self._end if self._end.at is not None else None
            return
        if self._end.at is None:
            log = driver.log
            code, reason, strays = driver.finish(END_SECONDS)
            self._end = DriverEnd(None, code, reason, strays=strays, log=log, restarts=self._restarts)
        self.evidence.driver = self._end
        driver.close()

    def _leftovers(self, before: tuple[int, ...]) -> list[str]:
        """What is still there: processes, descriptors, sockets."""
        found = []
        end = time.monotonic() + 1.0
        while (left := tagged(self._tag)) and time.monotonic() < end:
            time.sleep(0.005)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        found += [f"process {pid}" for pid in left]
        more = len(held()) - len(before)
        if more > 0:
            found.append(f"{more} descriptors of the supervisor")
        return found


def _doing(client: ClientProcess) -> str:
    return max(client.slots(), key=lambda slot: (slot.place, slot.since)).text
