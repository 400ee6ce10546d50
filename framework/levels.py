"""What a device of an older level gets: a model, settings and deadlines that it knows, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from nnhal.device import CompilationConfig, ExecutionConfig
from nnhal.model import Model, is_known, is_tensor
from nnhal.types import FL1, FL2, FL3, FL4, FL5, FL8, ExecutionPreference, FeatureLevel, Priority
from nnhal.versions import compliant_with, convert_to


def known_operations(model: Model, level: FeatureLevel, own: FeatureLevel) -> tuple[list[bool], bool]:
    """Which operations of a model a level knows, and whether it can take the model as it is.

    Levels 1 and 2 have no output shapes: they get nothing whose result is of unknown size.

    Args:
        model: valid at the framework's level.
        level: the device's.
        own: the framework's.
    """
    known = [True] * len(model.main.operations)
    if level == own:
        return known, level >= FL5
    obstacles = compliant_with(model, level)
    for obstacle in obstacles:
        if obstacle.operation is not None:
            known[obstacle.operation] = False
    if level < FL3:
        for number, operation in enumerate(model.main.operations):
            results = [model.main.operands[i] for i in operation.outputs]
            known[number] &= all(is_known(o.dimensions) or not is_tensor(o.type) for o in results)
    return known, level >= FL5 and not obstacles and all(known)


def fitted(model: Model, level: FeatureLevel) -> Model:
    """A part as its device's level carries it. A device of level 1 computes exactly where others may be relaxed.

    Raises:
        ValueError: the level cannot carry it.
    """
    if level >= FL5:
        obstacles = compliant_with(model, level) if level < FL8 else []
        if obstacles:
            raise ValueError(obstacles[0].reason)
        return model
    if level == FL1:
        model = replace(model, relax_computation_float32_to_float16=False)
    if level < FL3:
        model = replace(model, extension_name_to_prefix=())
    return convert_to(model, level)  # what it would warn of is gone already: a part has nothing that is not used


def compilation_at(config: CompilationConfig, level: FeatureLevel) -> CompilationConfig:
    """Preference, priority, deadline and hints as far as a level knows them; caches are not handed on."""
    return CompilationConfig(
        preference=config.preference if level >= FL2 else ExecutionPreference.FAST_SINGLE_ANSWER,
        priority=config.priority if level >= FL4 else Priority.MEDIUM,
        deadline=config.deadline if level >= FL4 else None,
        compilation_hints=config.compilation_hints if level >= FL8 else (),
        extension_name_to_prefix=config.extension_name_to_prefix if level >= FL8 else (),
    )


def execution_at(config: ExecutionConfig, level: FeatureLevel) -> ExecutionConfig:
    """Timing, loop timeout and hints as far as a level knows them."""
    return ExecutionConfig(
        measure_timing=config.measure_timing and level >= FL3,
        loop_timeout_duration=config.loop_timeout_duration if level >= FL4 else None,
        execution_hints=config.execution_hints if level >= FL8 else (),
        extension_name_to_prefix=config.extension_name_to_prefix if level >= FL8 else (),
    )


def deadline_at(deadline: int | None, level: FeatureLevel) -> int | None:
    """A deadline where the level has them. It is a point in time, so what is left of it shrinks by itself."""
    return deadline if level >= FL4 else None
