"""The search for a smaller case that fails alike: makes cases of edits, asks the driver, keeps what is good."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from harness.case import Origin, TestCase
from harness.editable import Net
from harness.make import graph_case
from harness.settling import NO_RESULT, Settled, Trace, Unfit, settle
from harness.verdict import Judgement, Verdict
from nnhal import wire

LONGER, FEWEST_CALLS = 2, 300  # a case may take so many times the operations of the first, and so many more
MOST_HANGS = 60  # probes that wait a whole deadline each
FREELY = (Verdict.CRASH, Verdict.HANG)  # where and how it happens is chance

Fails = Callable[[TestCase], Judgement]


@dataclass(frozen=True)
class Progress:
    """How far a search is.

    Attributes:
        stage: what is tried at present.
        probes: how often the driver was asked so far.
        budget: how often it may be asked.
        operations: of the smallest case so far.
        elements: of all its constants and inputs.
    """

    stage: str
    probes: int
    budget: int
    operations: int
    elements: int


def alike(first: Judgement, other: Judgement) -> bool:
    """Whether two judgements are of the same failure: verdict, cause and, unless the driver ended, the stage."""
    if first.verdict != other.verdict:
        return False
    return first.verdict in FREELY or (first.cause, first.stage) == (other.cause, other.stage)


def operation_count(net: Net) -> int:
    """Operations of all graphs that may be run."""
    return sum(len(net.graphs[number].operations) for number in net.live())


def element_count(net: Net) -> int:
    """Elements of all constants and inputs that are read."""
    return sum(net.graphs[graph].values[number].size for graph, number in net.valued())


@dataclass(frozen=True)
class Candidate:
    """An edit that is valid and was not tried before."""

    settled: Settled
    case: TestCase


@dataclass(frozen=True)
class Kept:
    """A case that was the smallest for a while."""

    case: TestCase
    judgement: Judgement
    settled: Settled


@dataclass
class Search:
    """The smallest case so far, and the way to a smaller one.

    Attributes:
        case: the smallest that fails alike.
        judgement: of it.
        due: the failure that is to stay.
        settled: the case as a net.
        fails: runs and judges a case.
        budget: how often that may be done.
        probes: how often it was done.
        kept: every case that was the smallest, the first one in front.
    """

    case: TestCase
    judgement: Judgement
    settled: Settled
    fails: Fails
    budget: int
    probes: int
    progress: Callable[[Progress], None] = lambda progress: None
    stage: str = ""
    kept: list[Kept] = field(default_factory=list)
    _hangs: int = 0
    _seen: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.due = self.judgement
        self._level, self._needs = self.case.level, set(self.case.needs)
        self._most = FEWEST_CALLS + LONGER * self.trace.count
        self._seen.add(_key(self.settled))
        self.kept.append(Kept(self.case, self.judgement, self.settled))

    @property
    def net(self) -> Net:
        """The smallest case so far."""
        return self.settled.net

    @property
    def trace(self) -> Trace:
        """What its run came to."""
        return self.settled.trace

    @property
    def spent(self) -> bool:
        """Whether the driver may not be asked again."""
        return self.probes >= self.budget or self._hangs >= MOST_HANGS

    def candidate(self, settled: Settled) -> Candidate | None:
        """A valid edit as a case; None where nothing is due of it, or it needs more of the driver."""
        trace, was = settled.trace, self.kept[0].settled.trace
        if (was.finite and not trace.finite) or (was.full and not trace.full):
            return None
        try:
            case = remade(settled, self.case.origin)
        except ValueError:
            return None
        if case.level > self._level or not set(case.needs) <= self._needs:
            return None
        return Candidate(settled, case)

    def probe(self, candidate: Candidate) -> bool:
        """Asks the driver, and keeps what fails alike."""
        if self.spent:
            return False
        self.probes += 1
        judgement = self.fails(candidate.case)
        self._hangs += judgement.verdict == Verdict.HANG
        good = alike(self.due, judgement)
        if good:
            self.kept.append(Kept(candidate.case, judgement, candidate.settled))
            self.back_to(self.kept[-1])
        sizes = operation_count(self.net), element_count(self.net)
        self.progress(Progress(self.stage, self.probes, self.budget, *sizes))
        return good

    def back_to(self, kept: Kept) -> None:
        """Makes a case the smallest."""
        self.case, self.judgement, self.settled = kept.case, kept.judgement, kept.settled

    def attempt(self, net: Net) -> bool:
        """Makes a case of an edit, asks the driver, and keeps it where it fails alike."""
        return self.attempt_first((net,))

    def attempt_first(self, nets: Iterable[Net]) -> bool:
        """Asks for the first of several edits that is valid: they stand for one another. Nothing is asked twice."""
        for net in nets:
            if self.spent:
                return False
            try:
                settled = settle(net, self._level, self._most)
            except Unfit:
                continue
            key = _key(settled)
            if key in self._seen:
                return False
            self._seen.add(key)
            candidate = self.candidate(settled)
            if candidate is not None:
                return self.probe(candidate)
        return False

    def attempt_any(self, nets: Iterable[Net]) -> bool:
        """Asks for edits until one is kept."""
        return any(self.attempt(net) for net in nets)


def remade(settled: Settled, origin: Origin) -> TestCase:
    """The case of a net.

    Raises:
        ValueError: nothing is due of it.
    """
    assembled, bare = settled.assembled, replace(origin, detail="")
    try:
        with np.errstate(all="ignore"):
            return graph_case(assembled.model, assembled.inputs, bare, mode=settled.net.mode)
    except NO_RESULT as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _key(settled: Settled) -> bytes:
    """What tells two cases apart."""
    digest = hashlib.sha256(wire.dumps(settled.assembled.model))
    digest.update(bytes([settled.net.mode]))
    for value in settled.assembled.inputs:
        digest.update(b"-" if value is None else f"{value.shape}".encode() + value.tobytes())
    return digest.digest()
