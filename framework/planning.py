"""Asks devices what they can run, and makes a plan out of the answers that also holds for the parts as they are."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from framework.events import Event, EventKind, Report
from framework.levels import fitted, known_operations
from framework.members import Member, lost
from framework.plan import Part, Plan, choose, group
from framework.submodel import Cut, cut
from nnhal.device import CompilationConfig
from nnhal.errors import DriverError, UncleanError
from nnhal.model import Model
from nnhal.types import ErrorStatus, FeatureLevel
from nnhal.vlog import is_on, vlog

KEPT = 8  # models whose answers are remembered, so that preparing does not ask again


@dataclass
class Asked:
    """What the devices said of a model: by name, what of the whole they claim, and the parts that were made of it."""

    model: Model
    supported: dict[str, list[bool]] = field(default_factory=dict)
    cuts: dict[tuple[str, tuple[int, ...]], Cut] = field(default_factory=dict)


@dataclass
class Planner:
    """Makes plans for models.

    Args:
        members: in the order in which they were given, the CPU last.
        level: the framework's.
        report: told of answers that do not go together.
    """

    members: Sequence[Member]
    level: FeatureLevel
    report: Report
    _kept: OrderedDict[int, Asked] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def ask(self, model: Model, *, anew: bool = False) -> Asked:
        """What each device says of a valid model.

        Args:
            model: valid at the framework's level.
            anew: ask again, as a client that asks does.
        """
        with self._lock:
            found = self._kept.get(id(model))
        if found is not None and not anew:
            return found
        asked = Asked(model)
        left = [True] * len(model.main.operations)  # what nobody has claimed yet
        for member in self.members:
            if member.cpu and not any(left):  # nothing for it to do, unless another fails
                asked.supported[member.name] = [False] * len(left)
                continue
            claims = asked.supported[member.name] = self._claims(member, model)
            left = [still and not yes for still, yes in zip(left, claims, strict=True)]
        with self._lock:
            self._kept[id(model)] = asked  # holds the model: its id stays its own
            self._kept.move_to_end(id(model))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return asked

    def plan(self, model: Model, config: CompilationConfig) -> tuple[Plan, list[Cut]]:
        """A plan whose every part its device claims, and the parts' models.

        Raises:
            DriverError: no device has one of the operations; or the deadline passed meanwhile.
        """
        asked = self.ask(model)
        while True:
            chosen = choose(self.members, asked.supported, model, config.preference)
            missing = [number for number, member in enumerate(chosen) if member is None]
            if missing and self._ask_cpu(asked):
                continue
            if missing:
                raise DriverError(ErrorStatus.GENERAL_FAILURE, f"no device runs operation {missing[0]}")
            parts = group(model, [member for member in chosen if member is not None])
            cuts = [self._cut(asked, part) for part in parts]
            refused = [part for part, made in zip(parts, cuts, strict=True) if made is None]
            if not refused:
                plan = Plan(model, parts)
                if is_on("compilation"):
                    vlog("compilation", f"{len(chosen)} operations in {len(parts)} parts: {plan}")
                return plan, [made for made in cuts if made is not None]
            if config.deadline is not None and time.monotonic_ns() >= config.deadline:
                raise DriverError(ErrorStatus.MISSED_DEADLINE_TRANSIENT, "the deadline passed while planning")

    def whole(self, member: Member, model: Model) -> Cut:
        """The whole model as one device gets it.

        Raises:
            ValueError: the device's level cannot carry it.
        """
        known, as_it_is = known_operations(model, member.level, self.level)
        if as_it_is:
            return Cut(model, model.main.input_indexes, model.main.output_indexes)
        if not all(known):
            raise ValueError(f"level {member.level.version} does not know operation {known.index(False)}")
        made = cut(model, range(len(known)))
        return Cut(fitted(made.model, member.level), made.inputs, made.outputs)

    def _ask_cpu(self, asked: Asked) -> bool:
        """Asks the CPU after all, now that another device took a claim back; False when it was asked before."""
        for member in self.members:
            if member.cpu and not any(asked.supported[member.name]):
                claims = self._claims(member, asked.model)
                asked.supported[member.name] = claims
                return any(claims)
        return False

    def _claims(self, member: Member, model: Model) -> list[bool]:
        """What a device says of a model's operations, those that its level does not know left out."""
        known, as_it_is = known_operations(model, member.level, self.level)
        if as_it_is:
            return self._query(member, model)
        numbers = [number for number, yes in enumerate(known) if yes]
        claims = [False] * len(known)
        if numbers:
            try:
                answer = self._query(member, fitted(cut(model, numbers).model, member.level))
            except ValueError as reason:
                vlog("compilation", f"{member.name} gets nothing of a model: {reason}")
                return claims
            for number, yes in zip(numbers, answer, strict=True):
                claims[number] = yes
        return claims

    def _query(self, member: Member, model: Model) -> list[bool]:
        count = len(model.main.operations)
        try:
            answer = list(member.device.get_supported_operations(model))
            if len(answer) != count:
                text = f"the support query gave {len(answer)} booleans for {count} operations"
                raise UncleanError("ValueError", text)
        except DriverError as error:
            text = f"{member.name} answered {error} to the support query of a valid model"
            self.report(Event(EventKind.QUERY_REFUSED, member.name, text))
            return [False] * count
        except Exception as error:
            lost(member, error, self.report)
        return [bool(yes) for yes in answer]

    def _cut(self, asked: Asked, part: Part) -> Cut | None:
        """A part's model; None where its device, asked about just that, does not claim it all."""
        key = part.member.name, part.operations
        if key in asked.cuts:
            return asked.cuts[key]
        try:
            if len(part.operations) == len(asked.model.main.operations):
                made = self.whole(part.member, asked.model)
            else:
                piece = cut(asked.model, part.operations)
                made = Cut(fitted(piece.model, part.member.level), piece.inputs, piece.outputs)
                if not self._claimed(asked, part, made):
                    return None
        except ValueError as reason:
            self._take_back(asked, part, part.operations, str(reason))
            return None
        asked.cuts[key] = made
        return made

    def _claimed(self, asked: Asked, part: Part, made: Cut) -> bool:
        if part.member.cpu:
            return True
        claims = self._query(part.member, made.model)
        if all(claims):
            return True
        refused = [number for number, yes in zip(part.operations, claims, strict=True) if not yes]
        if len(refused) == len(part.operations) > 1:  # perhaps for one of them: each is asked about alone
            alone = [n for n in refused if not self._claims_alone(asked.model, part.member, n)]
            refused = alone or refused
        self._take_back(asked, part, refused, "it does not claim the part that was made for it")
        return False

    def _claims_alone(self, model: Model, member: Member, number: int) -> bool:
        try:
            return all(self._query(member, fitted(cut(model, [number]).model, member.level)))
        except ValueError:
            return False

    def _take_back(self, asked: Asked, part: Part, operations: Sequence[int], reason: str) -> None:
        name = part.member.name
        for number in operations:
            asked.supported[name][number] = False
        numbers = ", ".join(str(number) for number in operations)
        text = f"{name} claimed operation {numbers} in the whole model, and not in a part: {reason}"
        self.report(Event(EventKind.UNCLAIMED, name, text))
