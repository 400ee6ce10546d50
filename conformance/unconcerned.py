"""Which rules do not concern which signatures: no call of theirs offers a way to break them.

`python -m conformance.unconcerned` writes the list anew from the definitions, when rules or signatures have changed.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from nnhal.operations import Signature, ValidationRule
from nnhal.types import FeatureLevel
from opset import OPSET
from opset.call import Call
from opset.definition import ExecutionRule, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.source import SeededSource
from opset.validation import applies, broken, holds, violations

Rule = ValidationRule | ExecutionRule
LIST = Path(__file__).with_suffix(".json")
DRAWS = 200  # without a way to break a rule, before it is taken not to concern the signature


def break_of(
    definition: OperationDef, signature: Signature, rule: Rule, words: str, draws: int
) -> tuple[Call, Call] | None:
    """A valid call and the same call with a rule broken; None where no draw offers a way.

    Args:
        words: the seed.
        draws: how many calls are tried.
    """
    level = max(FeatureLevel)
    if isinstance(rule, ValidationRule) and rule.until is not None:
        level = FeatureLevel(rule.until - 1)
    if signature.since > level:
        return None  # the rule is lifted before there is such a signature
    for attempt in range(draws):
        call = draw_call(definition, signature, Scope(SeededSource(f"{words}/{attempt}"), level))
        if violations(call, level) or (isinstance(rule, ValidationRule) and not applies(rule, call, level)):
            continue
        bad = broken(rule, call)
        if bad is not None and not holds(rule, bad):
            return call, bad
    return None


@cache
def unconcerned() -> dict[str, dict[str, list[str]]]:
    """Signatures by operation and label of the rule."""
    found: dict[str, dict[str, list[str]]] = json.loads(LIST.read_text(encoding="utf-8"))
    return found


def concerns(definition: OperationDef, signature: Signature, rule: Rule) -> bool:
    """Whether a rule can be broken in a signature, as far as the list says."""
    return signature.id not in unconcerned().get(definition.name, {}).get(rule.label, ())


def search() -> dict[str, dict[str, list[str]]]:
    """What the list should say; takes a few minutes."""
    found: dict[str, dict[str, list[str]]] = {}
    for definition in OPSET.values():
        for rule in definition.rules:
            for signature in definition.signatures:
                words = f"unconcerned/{definition.name}/{signature.id}/{rule.label}"
                if break_of(definition, signature, rule, words, DRAWS) is None:
                    found.setdefault(definition.name, {}).setdefault(rule.label, []).append(signature.id)
    return found


if __name__ == "__main__":
    LIST.write_text(json.dumps(search(), indent=1) + "\n", encoding="utf-8")
