"""Takes values out of files of JSON that people write, with one clear sentence where something is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from nnhal.errors import UsageError

Checked = TypeVar("Checked")


def parsed(text: str, name: str) -> Any:
    """JSON as Python values.

    Raises:
        UsageError: it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is no JSON: {error}") from None


class Fields:
    """The fields of an object in a file of JSON, taken out with a check of their kind.

    Attributes:
        where: the object's place, for messages.

    Raises:
        UsageError: a field is missing, has another kind, or is unknown.
    """

    def __init__(self, value: Any, where: str, known: Sequence[str] | None = None) -> None:
        if not isinstance(value, dict):
            raise UsageError(f"{where} is no object; write {{...}}")
        self.value: dict[str, Any] = value
        self.where = where
        if known is not None:
            self.only(known)

    def only(self, known: Sequence[str]) -> None:
        """Refuses fields that are not known."""
        for key in self.value:
            if key not in known:
                raise UsageError(f"{self.where}: field {key!r} is unknown; the fields are {', '.join(known)}")

    def optional(self, key: str, take: Callable[[], Checked]) -> Checked | None:
        """What `take` gives where the field is there."""
        return take() if key in self.value else None

    def text(self, key: str) -> str:
        """A string."""
        return str(self._of(key, str, "a string"))

    def flag(self, key: str) -> bool:
        """True or false."""
        return bool(self._of(key, bool, "true or false"))

    def integer(self, key: str) -> int:
        """A whole number."""
        return int(self._of(key, int, "a whole number"))

    def number(self, key: str) -> float:
        """A finite number."""
        return self._number(key, self._of(key, (int, float), "a number"))

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        return [str(self._kind(key, one, str, "a list of strings")) for one in self._of(key, list, "a list")]

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers."""
        return [int(self._kind(key, one, int, "a list of whole numbers")) for one in self._of(key, list, "a list")]

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers."""
        kind = (int, float)
        return [
            self._number(key, self._kind(key, one, kind, "a list of numbers")) for one in self._of(key, list, "a list")
        ]

    def one_of(self, key: str, choices: Sequence[str]) -> str:
        """A string out of a list."""
        found = self.text(key)
        if found not in choices:
            raise UsageError(f"{self.where}: {key} {found!r} is unknown; choose {', '.join(choices)}")
        return found

    def object(self, key: str) -> Fields:
        """An object within."""
        return Fields(self._of(key, dict, "an object"), f"{self.where}, {key}")

    def objects(self, key: str) -> list[tuple[str, Any]]:
        """A list, with the place of each of its values."""
        return [(f"{self.where}, {key}[{n}]", one) for n, one in enumerate(self._of(key, list, "a list"))]

    def _of(self, key: str, kind: type | tuple[type, ...], words: str) -> Any:
        if key not in self.value:
            raise UsageError(f"{self.where}: field {key!r} is missing")
        return self._kind(key, self.value[key], kind, words)

    def _kind(self, key: str, value: Any, kind: type | tuple[type, ...], words: str) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise UsageError(f"{self.where}: {key} is {value!r}; {words} is due")
        return value

    def _number(self, key: str, value: Any) -> float:
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if not math.isfinite(found):
            raise UsageError(f"{self.where}: {key} is {value!r}; a finite number is due")
        return found
