"""Drivers that cache wrongly, each seen by the scenario that is there for it, and by what words."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence

import pytest

from conformance.caching import SCENARIOS
from nnhal import wire
from nnhal.device import DEFAULT_COMPILATION, CacheFilesNeeded, CompilationConfig, PreparedModel, Traits
from nnhal.errors import DriverError, invalid
from nnhal.model import Model
from nnhal.types import ErrorStatus, ExecutionMode
from reference_driver import ReferenceDevice
from tests.scenario_runs import caught

SCENARIO_NAMES = [scenario.name for scenario in SCENARIOS]
GF = ErrorStatus.GENERAL_FAILURE
DIGEST = 32


class OwnFormat(ReferenceDevice):
    """Saves token, checksum and model, and checks all of it; each fault below leaves one thing out."""

    checks_token = checks_content = checks_data = checks_access = checks_counts = True
    truncates = saves = True
    refuses_at_save = from_position = False

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        prepared = super().prepare_model(model, CompilationConfig(config.preference, config.priority, config.deadline))
        if config.model_cache or config.data_cache:
            self.save(prepared.model, config)  # type: ignore[attr-defined]
        return prepared

    def save(self, model: Model, config: CompilationConfig) -> None:
        files = (*config.model_cache, *config.data_cache)
        fits = (len(config.model_cache), len(config.data_cache)) == (1, 1)
        if self.refuses_at_save and not fits:
            raise invalid("wrong cache files")
        content = wire.dumps(model)
        whole = config.cache_token + hashlib.sha256(config.cache_token + content).digest() + content
        if not fits or not self.saves:
            return
        try:
            for descriptor in files:
                os.pread(descriptor, 1, 0)
                if self.truncates:
                    os.ftruncate(descriptor, 0)
            for descriptor, data in zip(files, (whole, hashlib.sha256(whole).digest()), strict=True):
                if self.from_position:
                    os.write(descriptor, data)
                else:
                    os.pwrite(descriptor, data, 0)
        except OSError:
            return

    def prepare_model_from_cache(
        self, model_cache: Sequence[int], data_cache: Sequence[int], token: bytes, deadline: int | None = None
    ) -> PreparedModel:
        if self.checks_counts and (len(model_cache), len(data_cache)) != (1, 1):
            raise invalid("wrong cache files")
        try:
            whole = os.pread(model_cache[0], 1 << 24, 0)
            beside = os.pread(data_cache[0], 1 << 24, 0)
            if self.checks_access:
                os.pwrite(model_cache[0], b"", 0)
        except (OSError, IndexError) as error:
            raise DriverError(GF, str(error)) from None
        content = whole[2 * DIGEST :]
        if self.checks_token and whole[:DIGEST] != token:
            raise DriverError(GF, "token")
        kept = whole[DIGEST : 2 * DIGEST]
        if self.checks_content and kept != hashlib.sha256(whole[:DIGEST] + content).digest():
            raise DriverError(GF, "content")
        if self.checks_data and beside != hashlib.sha256(whole).digest():
            raise DriverError(GF, "data")
        try:
            return super().prepare_model(wire.loads(Model, content))
        except (ValueError, DriverError) as error:
            raise DriverError(GF, str(error)) from None


class InMemory(ReferenceDevice):
    """Looks only at the token, and remembers the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[bytes, Model] = {}

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        self.models[config.cache_token] = model
        return super().prepare_model(model, config)

    def prepare_model_from_cache(
        self, model_cache: Sequence[int], data_cache: Sequence[int], token: bytes, deadline: int | None = None
    ) -> PreparedModel:
        if token not in self.models:
            raise DriverError(GF, "token")
        return super().prepare_model(self.models[token])


class NoCaching(ReferenceDevice):
    """Asks for no files, and gives the wrong answer for that."""

    traits = Traits(frozenset(ExecutionMode))

    def get_number_of_cache_files_needed(self) -> CacheFilesNeeded:
        return CacheFilesNeeded()

    def prepare_model_from_cache(
        self, model_cache: Sequence[int], data_cache: Sequence[int], token: bytes, deadline: int | None = None
    ) -> PreparedModel:
        raise invalid("no caching")


class Lazy(OwnFormat):
    """Lets its own error through where it cannot read."""

    def prepare_model_from_cache(
        self, model_cache: Sequence[int], data_cache: Sequence[int], token: bytes, deadline: int | None = None
    ) -> PreparedModel:
        os.pread(model_cache[0], 1, 0)
        return super().prepare_model_from_cache(model_cache, data_cache, token, deadline)


def having(**faults: bool) -> Callable[[], OwnFormat]:
    return lambda: type("Faulty", (OwnFormat,), faults)()


@pytest.mark.parametrize("name", SCENARIO_NAMES)
def test_the_format_of_these_tests_is_right(name: str) -> None:
    assert caught(SCENARIOS, name, OwnFormat, 1) == ""


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (having(checks_token=False), "wrong.token", "ACCEPTED: load accepted what breaks C1 (the token differs"),
        (having(checks_token=False), "zero.token", "ACCEPTED"),
        (
            having(checks_content=False, checks_data=False),
            "model.flip",
            "ACCEPTED: load accepted what breaks C1 (one bit is another",
        ),
        (having(checks_content=False, checks_data=False), "size.megabyte", "ACCEPTED"),
        (having(checks_data=False), "replaced", "under the same token, the data cache is not"),
        (having(checks_access=False), "load.read.only", "GENERAL_FAILURE is required"),
        (having(checks_counts=False), "load.model.one.more", "INVALID_ARGUMENT or GENERAL_FAILURE is required"),
        (having(truncates=False), "overwritten", "GENERAL_FAILURE (content); NONE is required"),
        (having(from_position=True), "position.moved", "NONE is required"),
        (having(refuses_at_save=True), "save.data.one.more", "prepare of a valid model answered INVALID_ARGUMENT"),
        (having(saves=False), "save.and.load", "load of a valid model answered GENERAL_FAILURE"),
        (InMemory, "model.empty", "ACCEPTED"),
        (InMemory, "restart", "load of a valid model answered GENERAL_FAILURE"),
        (NoCaching, "not.supported", "the driver asks for no cache files"),
        (Lazy, "load.write.only", "UNCLEAN_ERROR: load raised OSError"),
        (Lazy, "load.no.descriptor", "UNCLEAN_ERROR: load raised OSError"),
    ],
)
def test_a_fault_is_seen(make: Callable[[], ReferenceDevice], name: str, words: str) -> None:
    assert words in caught(SCENARIOS, name, make)


def test_a_driver_that_asks_for_more_files_of_each_kind_passes() -> None:
    class Several(OwnFormat):
        def get_number_of_cache_files_needed(self) -> CacheFilesNeeded:
            return CacheFilesNeeded(3, 0)

        def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
            prepared = ReferenceDevice.prepare_model(self, model)
            if len(config.model_cache) == 3 and not config.data_cache:
                content = wire.dumps(prepared.model)  # type: ignore[attr-defined]
                for number, descriptor in enumerate(config.model_cache):
                    whole = config.cache_token + bytes([number]) + content
                    try:
                        os.pread(descriptor, 1, 0)
                        os.ftruncate(descriptor, 0)
                        os.pwrite(descriptor, hashlib.sha256(whole).digest() + whole, 0)
                    except OSError:
                        break
            return prepared

        def prepare_model_from_cache(
            self, model_cache: Sequence[int], data_cache: Sequence[int], token: bytes, deadline: int | None = None
        ) -> PreparedModel:
            if len(model_cache) != 3 or data_cache:
                raise invalid("count")
            try:
                files = [os.pread(descriptor, 1 << 24, 0) for descriptor in model_cache]
                os.pwrite(model_cache[0], b"", 0)
            except OSError as error:
                raise DriverError(GF, str(error)) from None
            for number, whole in enumerate(files):
                good = hashlib.sha256(whole[DIGEST:]).digest() == whole[:DIGEST]
                if not good or whole[DIGEST : 2 * DIGEST + 1] != token + bytes([number]):
                    raise DriverError(GF, "content")
            return ReferenceDevice.prepare_model(self, wire.loads(Model, files[2][2 * DIGEST + 1 :]))

    # Without a data cache nothing can tell two whole caches of one token apart: the contract asks for it all the same.
    replaced = {"replaced", "changed.while.loading.replace"}
    assert [n for n in SCENARIO_NAMES if n not in replaced and caught(SCENARIOS, n, Several, 1)] == []
