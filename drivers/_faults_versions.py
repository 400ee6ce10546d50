"""Faults of versions, extensions, lifetimes of operands and the execution of what breaks a rule only then."""

from __future__ import annotations

from collections.abc import Callable

from drivers._faults import Fault, Faults, Preparing, Query, Run
from drivers._faults_memory import poke
from drivers._faults_wrapping import Nothing
from nnhal.device import ExecutionResult, PreparedModel
from nnhal.errors import DriverError, invalid
from nnhal.model import Model, is_known, is_tensor
from nnhal.types import BASE_CODE_MAX, FL8, ErrorStatus, FeatureLevel, OperandLifeTime
from nnhal.validate import violations
from nnhal.versions import needed_level

VERSIONS, EXTENSIONS, RULES, GENERATED = "Versions", "Extensions", "Model rules", "Driver tests: generated"
UNKNOWN = "a device that does not know an extension answers false in the support query"
Ready = Callable[[], PreparedModel]
Asked = Callable[[], list[bool]]
Go = Callable[[], ExecutionResult]
CONSTANTS = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)
LONG_CONSTANT = 128  # bytes up to which a runtime copies constants at once
_FAILURE = ErrorStatus.GENERAL_FAILURE


def _is_newer(model: Model, level: FeatureLevel) -> bool:
    """Whether a model is valid, but for a later level."""
    return bool(violations(model, level)) and not violations(model, FL8, consumers=False)


def _takes_newer(query: Query, go: Asked) -> list[bool]:
    newer = _is_newer(query.model, query.state.inner.feature_level)
    return [True] * len(query.model.main.operations) if newer else go()


def _prepares_newer(preparing: Preparing, go: Ready) -> PreparedModel:
    return Nothing() if _is_newer(preparing.model, preparing.state.inner.feature_level) else go()


def _old(model: Model, level: FeatureLevel) -> bool:
    return needed_level(model) < level


def _only_newest(query: Query, go: Asked) -> list[bool]:
    if _old(query.model, query.state.inner.feature_level):
        raise invalid("the model is out of date")
    return go()


def _uses_extension(model: Model) -> bool:
    graphs = (model.main, *model.referenced)
    codes = [o.type for g in graphs for o in g.operands] + [o.type for g in graphs for o in g.operations]
    return any(code > BASE_CODE_MAX for code in codes)


def _refuses_extensions(query: Query, go: Asked) -> list[bool]:
    if _uses_extension(query.model):
        raise invalid("extensions are not known")
    return go()


def _claims_extensions(query: Query, go: Asked) -> list[bool]:
    answer = go()
    return [True] * len(answer) if _uses_extension(query.model) else answer


def _prepares_extensions(preparing: Preparing, go: Ready) -> PreparedModel:
    return Nothing() if _uses_extension(preparing.model) else go()


def _looks_up(query: Query, go: Asked) -> list[bool]:
    """Looks every code up in its own table."""
    for operation in query.model.main.operations:
        if operation.type > BASE_CODE_MAX:
            raise KeyError(operation.type)
    return go()


def _all_or_nothing(query: Query, go: Asked) -> list[bool]:
    """What stands beside an unknown operation is not supported either."""
    answer = go()
    return [all(answer)] * len(answer)


def _refuses_table(query: Query, go: Asked) -> list[bool]:
    if query.model.extension_name_to_prefix:
        return [False] * len(go())
    return go()


def _spoiled_by_relaxed(preparing: Preparing, go: Ready) -> PreparedModel:
    """One relaxed model relaxes all, to the precision of 3 bits."""
    if preparing.model.relax_computation_float32_to_float16:
        preparing.state.kept["relaxed"] = True
    return go()


def _coarse(run: Run, go: Go) -> ExecutionResult:
    result = go()
    strict = run.model is not None and not run.model.relax_computation_float32_to_float16
    if strict and run.state.kept.get("relaxed"):
        run.outputs.damage()
    return result


def _refuses(when: Callable[[Model], bool]) -> Callable[[Preparing, Ready], PreparedModel]:
    """Has claimed a model that it cannot prepare."""

    def hook(preparing: Preparing, go: Ready) -> PreparedModel:
        if when(preparing.model):
            raise DriverError(_FAILURE, "this model cannot be prepared")
        return go()

    return hook


def _wrong(when: Callable[[Model], bool]) -> Callable[[Run, Go], ExecutionResult]:
    """Computes models of some form wrongly."""

    def hook(run: Run, go: Go) -> ExecutionResult:
        result = go()
        if run.model is not None and when(run.model):
            run.outputs.damage()
        return result

    return hook


def _second_is_input(model: Model) -> bool:
    second = [operation.inputs[1] for operation in model.main.operations if len(operation.inputs) > 1]
    return any(model.main.operands[i].lifetime == OperandLifeTime.SUBGRAPH_INPUT for i in second)


def _unread_input(model: Model) -> bool:
    read = {index for operation in model.main.operations for index in operation.inputs}
    return any(index not in read for index in model.main.input_indexes)


def _output_is_read(model: Model) -> bool:
    read = {index for operation in model.main.operations for index in operation.inputs}
    return any(index in read for index in model.main.output_indexes)


def _read_twice(model: Model) -> bool:
    return any(
        operation.inputs.count(index) > 1 and model.main.operands[index].lifetime != OperandLifeTime.NO_VALUE
        for operation in model.main.operations
        for index in operation.inputs
    )


def _long_constant(model: Model) -> bool:
    return any(o.lifetime in CONSTANTS and o.location.length > LONG_CONSTANT for o in model.main.operands)


def _succeeds(run: Run, go: Go) -> ExecutionResult:
    """Takes for done what cannot be computed."""
    try:
        return go()
    except DriverError as error:
        if error.status != _FAILURE:
            raise
        return ExecutionResult()


def _zero_sized(run: Run, go: Go) -> ExecutionResult:
    """Fails where a result has no elements."""
    result = go()
    if any(0 in shape.dimensions for shape in result.output_shapes):
        raise DriverError(_FAILURE, "there is nothing to compute")
    return result


def _writes_nothing(run: Run, go: Go) -> ExecutionResult:
    """Writes an element where a result has none."""
    result = go()
    for view, shape in zip(run.outputs.views, result.output_shapes, strict=False):
        if 0 in shape.dimensions:
            poke(view, len(view))
    return result


def _open_internals(preparing: Preparing, go: Ready) -> PreparedModel:
    """Has claimed a model whose internal operands have unknown sizes."""
    main = preparing.model.main
    inner = [o for o in main.operands if o.lifetime == OperandLifeTime.TEMPORARY_VARIABLE and is_tensor(o.type)]
    if any(not is_known(operand.dimensions) for operand in inner):
        raise DriverError(_FAILURE, "an internal operand has an unknown size")
    return go()


ZERO = "a result without elements has a place of at least one byte, and its shape is told"
LIFETIMES = "each operand may be a constant, an input, a temporary"
FAULTS: Faults = {
    "version.newer": Fault(
        "takes models of later levels", "FAIL", "ACCEPTED", VERSIONS,
        "a device refuses a model whose minimum version is above its own", "VERSIONS-refused.below.*",
        query=_takes_newer, prepare=_prepares_newer,
    ),
    "version.older": Fault(
        "refuses models of older levels", "FAIL", "STATUS", VERSIONS, "a device takes the models of all older levels",
        "EXECUTION-mode.sync-*", query=_only_newest,
    ),
    "version.relaxed": Fault(
        "computes coarsely once a relaxed model was prepared", "FAIL", "VALUE", VERSIONS,
        "the relaxed flag is each model's own", "VERSIONS-relaxed.beside-*", prepare=_spoiled_by_relaxed, run=_coarse,
    ),
    "extension.invalid": Fault(
        "answers INVALID_ARGUMENT to an unknown extension", "FAIL", "STATUS", EXTENSIONS, UNKNOWN,
        "EXTENSIONS-unknown.*", query=_refuses_extensions,
    ),
    "extension.claimed": Fault(
        "claims to support unknown extensions", "FAIL", "SUPPORT", EXTENSIONS, UNKNOWN, "EXTENSIONS-unknown.*",
        query=_claims_extensions,
    ),
    "extension.prepared": Fault(
        "prepares models with unknown extensions", "FAIL", "ACCEPTED", EXTENSIONS,
        "what is not supported is not prepared", "EXTENSIONS-unknown.*", prepare=_prepares_extensions,
    ),
    "extension.key_error": Fault(
        "raises KeyError for an extension's operation", "FAIL", "UNCLEAN_ERROR", EXTENSIONS, UNKNOWN,
        "EXTENSIONS-unknown.*", query=_looks_up,
    ),
    "extension.beside": Fault(
        "supports nothing beside an unknown operation", "FAIL", "SUPPORT", EXTENSIONS,
        "support is answered for each operation by itself", "EXTENSIONS-beside-*", query=_all_or_nothing,
    ),
    "extension.table": Fault(
        "supports nothing in a model that names an extension", "FAIL", "SUPPORT", EXTENSIONS,
        "an extension that is not used changes nothing", "EXTENSIONS-unused.table-*", query=_refuses_table,
    ),
    "rule.execution": Fault(
        "succeeds with what cannot be computed", "FAIL", "ACCEPTED", GENERATED,
        "models that are to fail end with a status other than NONE", "IF-*-broken-*", "CONDITION_VALUE", run=_succeeds,
    ),
    "lifetime.input": Fault(
        "computes wrongly where a second operand is an input", "FAIL", "VALUE", RULES, LIFETIMES,
        "ADD-quant8_asymm-*-lifetime-1", run=_wrong(_second_is_input),
    ),
    "lifetime.unread": Fault(
        "cannot prepare models with inputs that nothing reads", "FAIL", "STATUS", RULES, "an unread input is fine",
        "LIFETIMES-unused.inputs-*", prepare=_refuses(_unread_input),
    ),
    "lifetime.output_read": Fault(
        "overwrites outputs that later operations read", "FAIL", "VALUE", RULES, "an output may be read, too",
        "LIFETIMES-output.read*", run=_wrong(_output_is_read),
    ),
    "lifetime.twice": Fault(
        "computes wrongly where an operation reads an operand twice", "FAIL", "VALUE", RULES,
        "an operand may be read twice by one operation", "LIFETIMES-one.operand.twice-*", run=_wrong(_read_twice),
    ),
    "lifetime.long_constant": Fault(
        "keeps the first 128 bytes of a constant", "FAIL", "VALUE", RULES,
        "constants may be of any size", "LIFETIMES-constant.132-*", run=_wrong(_long_constant),
    ),
    "zero_sized.fails": Fault(
        "fails where a result has no elements", "FAIL", "STATUS", GENERATED, ZERO, "RELU-*-zero_sized-*",
        run=_zero_sized,
    ),
    "zero_sized.writes": Fault(
        "writes an element where a result has none", "FAIL", "OVERRUN", GENERATED, ZERO, "RELU-*-zero_sized-*",
        run=_writes_nothing,
    ),
    "internal.open": Fault(
        "cannot prepare internal operands of unknown size", "FAIL", "STATUS", "Preparation",
        "unknown sizes are allowed for internal operands", "DYNAMIC_SHAPES-internal.*", prepare=_open_internals,
    ),
}  # fmt: skip
