"""Models made ready for an adapter's driver on the suite's side."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable

from nnhal import loading
from nnhal.errors import DriverError, SuiteError, UncleanError, UsageError
from nnhal.loading import DriverSpec
from nnhal.model import Model, Translation

TRANSLATIONS_KEPT = 8


class Translations:
    """The last few models that were translated, by identity.

    Args:
        make: translates one.
    """

    def __init__(self, make: Callable[[Model], Translation]) -> None:
        self._make = make
        self._kept: OrderedDict[int, tuple[Model, Model]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, model: Model) -> Model:
        """The model with its translation, its own where it brings one; whatever `make` raises where there is none."""
        if model.translation is not None:
            return model
        with self._lock:
            found = self._kept.get(id(model))
        if found is not None:
            return found[1]
        ready = dataclasses.replace(model, translation=self._make(model))  # may take long
        with self._lock:
            self._kept[id(model)] = (model, ready)  # holds the model: its id stays its own
            while len(self._kept) > TRANSLATIONS_KEPT:
                self._kept.popitem(last=False)
        return ready


def translate_here(spec: DriverSpec, adapter: str, model: Model) -> Translation:
    """An adapter's translation of a model, made in this process.

    Raises:
        UsageError: a package is missing.
        DriverError: the adapter says so.
        SuiteError: an adapter of ours raised something else.
        UncleanError: a vendor's did.
    """
    try:
        return loading.adapter_of(spec, adapter).translate(model, spec.options)
    except (UsageError, DriverError):
        raise
    except Exception as error:
        if spec.is_ours:
            text = f"translate of driver {spec.name!r}: {type(error).__name__}: {error}"
            raise SuiteError(text) from error
        raise UncleanError(type(error).__name__, str(error)) from error
