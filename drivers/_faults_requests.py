"""Faults of requests: what is accepted, what is refused, and where results and inputs lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from drivers._faults import EVERY_MODE, FENCED, SYNC, Fault, Faults, Run
from drivers._faults_memory import input_views
from nnhal.device import ExecutionResult
from nnhal.errors import DriverError, invalid
from nnhal.memory import Memory
from nnhal.model import RequestArgument, is_known, is_tensor
from nnhal.types import LOOP_TIMEOUT_MAX_NS, ErrorStatus, ExecutionMode
from nnhal.validate import REQUEST_RULES, execution_violations, request_violations, token_violations

REQUESTS, BURSTS = "Requests", "Burst"
Go = Callable[[], ExecutionResult]


def breaches(run: Run) -> list[str]:
    """Labels of the rules that a request breaks, with what goes with it."""
    if run.model is None:
        return []
    level = run.state.inner.feature_level
    found = request_violations(run.request, run.model, level, fenced=run.mode == FENCED)
    found += execution_violations(run.config, run.deadline, run.duration)
    if run.tokens is not None:
        found += token_violations(run.request, run.tokens)
    return [violation.label for violation in found]


def _accepts(label: str) -> Callable[[Run, Go], ExecutionResult]:
    """Takes requests in which the first thing that is wrong breaks a certain rule."""

    def hook(run: Run, go: Go) -> ExecutionResult:
        if breaches(run)[:1] == [label]:
            return ExecutionResult()
        return go()

    return hook


def _fault(label: str, catch: str, breaks: str = "") -> Fault:
    rule = REQUEST_RULES[label]
    return Fault(
        f"does not check that {rule}", "FAIL", "ACCEPTED", REQUESTS, rule, catch, breaks or f"*{label}",
        run=_accepts(label),
    )  # fmt: skip


def _accepts_in(mode: ExecutionMode) -> Callable[[Run, Go], ExecutionResult]:
    def hook(run: Run, go: Go) -> ExecutionResult:
        return ExecutionResult() if breaches(run) else go()

    return hook


def _general_failure(run: Run, go: Go) -> ExecutionResult:
    try:
        return go()
    except DriverError as error:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, error.message) from None


def _crashes(run: Run, go: Go) -> ExecutionResult:
    """Takes every request for a good one: Python's own exceptions come out."""
    if breaches(run):
        raise IndexError("a number of the request is out of range")
    return go()


def _refuses(when: Callable[[Run], bool], text: str) -> Callable[[Run, Go], ExecutionResult]:
    def hook(run: Run, go: Go) -> ExecutionResult:
        if when(run):
            raise invalid(text)
        return go()

    return hook


def _says_nothing(run: Run) -> bool:
    """An input of known dimensions for which the request says none."""
    if run.model is None:
        return False
    operands = [run.model.main.operands[i] for i in run.model.main.input_indexes]
    return any(
        is_tensor(o.type) and is_known(o.dimensions) and not a.dimensions and not a.has_no_value
        for o, a in zip(operands, run.request.inputs, strict=False)
    )


def _open_outputs(run: Run) -> bool:
    if run.model is None:
        return False
    operands = [run.model.main.operands[i] for i in run.model.main.output_indexes]
    return any(is_tensor(o.type) and not is_known(o.dimensions) for o in operands)


def _zeros(run: Run) -> bool:
    return any(0 in argument.dimensions for argument in run.request.outputs)


def _ranges(run: Run, arguments: Sequence[RequestArgument]) -> list[tuple[int, int, int]]:
    places = [a.location for a in arguments if not a.has_no_value and a.location.length]
    return sorted((p.pool_index, p.offset, p.offset + p.length) for p in places)


def _overlap(run: Run) -> bool:
    found = _ranges(run, run.request.inputs)
    return any(a[0] == b[0] and b[1] < a[2] for a, b in pairwise(found))


def _of_kind(kind: str) -> Callable[[Run], bool]:
    return lambda run: any(isinstance(pool, Memory) and pool.kind == kind for pool in run.request.pools)


def _odd_offset(run: Run) -> bool:
    return any(a.location.offset % 4 for a in (*run.request.inputs, *run.request.outputs) if not a.has_no_value)


def _many_pools(run: Run) -> bool:
    return len(run.request.pools) > 2


def _aligned_down(run: Run, go: Go) -> ExecutionResult:
    """Results of requests off the alignment are written four bytes at a time, from the word before on."""
    result = go()
    if _odd_offset(run):
        run.outputs.damage()
    return result


def _padding_written(run: Run, go: Go) -> ExecutionResult:
    """Takes padding behind an output for room of its own, and leaves the last byte there."""
    result = go()
    for argument, view in zip(run.request.outputs, run.outputs.views, strict=False):
        if argument.location.padding:
            pool = run.request.pools[argument.location.pool_index]
            assert isinstance(pool, Memory)
            end = argument.location.offset + argument.location.length
            pool.view()[end] = view[-1]
            view[-1] ^= 0xFF
    return result


def _beyond_padding(run: Run, go: Go) -> ExecutionResult:
    """Touches one byte more than the padding allows."""
    result = go()
    for argument in run.request.outputs:
        place = argument.location
        pool = None if argument.has_no_value else run.request.pools[place.pool_index]
        if isinstance(pool, Memory) and place.padding:
            pool.view()[place.offset + place.length + place.padding] ^= 0xFF
    return result


def _padding_read(run: Run, go: Go) -> ExecutionResult:
    """Computes with what is in the padding behind an input."""
    result = go()
    behind = b""
    for argument in run.request.inputs:
        place = argument.location
        pool = None if argument.has_no_value else run.request.pools[place.pool_index]
        end = place.offset + place.length
        if isinstance(pool, Memory):
            behind += bytes(pool.view()[end : end + place.padding])
    if any(behind):
        run.outputs.damage()
    return result


def _needs_padding(run: Run) -> bool:
    return any(a.location.padding == 0 for a in run.request.outputs if not a.has_no_value)


def _swaps_inputs(run: Run, go: Go) -> ExecutionResult:
    """Inputs in pools of their own are taken from the wrong ones."""
    if _many_pools(run):
        result = go()
        run.outputs.damage()
        return result
    return go()


def _clears_inputs(run: Run, go: Go) -> ExecutionResult:
    """Uses the memory of its inputs for intermediate results, and puts zeros there in the end."""
    result = go()
    for view in input_views(run.request):
        view[:] = bytes(len(view))
    return result


def _loop_limit(run: Run, go: Go) -> ExecutionResult:
    limit = run.config.loop_timeout_duration
    if limit is not None and limit > LOOP_TIMEOUT_MAX_NS:
        run.config = replace(run.config, loop_timeout_duration=LOOP_TIMEOUT_MAX_NS)
        return ExecutionResult()
    return go()


REQUEST_MUTATIONS = (
    ("R1", "*"),
    ("R2", "*"),
    ("R3", "*"),
    ("R5", "*"),
    ("R6", "open-input"),
    ("R7", "*"),
    ("R8", "*"),
    ("R9", "token-zero"),
    ("R11", "*"),
    ("R12", "tokens-*"),
)
FAULTS: Faults = {
    **{
        f"request.{label}": _fault(label, "*-request-*", f"{mutation}:{label}")
        for label, mutation in REQUEST_MUTATIONS
    },
    "request.R4": _fault("R4", "MEMORY-*in.parts*", "R4"),
    "request.R10": _fault("R10", "MEMORY-buffer.output.twice-*", "R10"),
    "request.loop_limit": Fault(
        "accepts a loop time-out above 15 s", "FAIL", "ACCEPTED", REQUESTS, "a loop time-out is 15 s at most",
        "*-request-*", "loop-timeout-long:*",
        run=_loop_limit,
    ),
    **{
        f"request.unchecked.{mode.name.lower()}": Fault(
            f"checks no request in {mode.name.lower()} execution", "FAIL", "ACCEPTED", REQUESTS,
            "every method that takes a request validates it first",
            f"EXECUTION-after.error.*-{short}-*", modes=frozenset({mode}), run=_accepts_in(mode),
        )
        for mode, short in zip(ExecutionMode, ("sync", "async", "burst", "fenced", "reusable"), strict=True)
    },
    "request.general_failure": Fault(
        "answers every error with GENERAL_FAILURE", "FAIL", "STATUS", REQUESTS,
        "a bad request is answered with INVALID_ARGUMENT", "EXECUTION-after.error.*", run=_general_failure,
    ),
    "request.index_error": Fault(
        "raises IndexError for a bad request", "FAIL", "UNCLEAN_ERROR", REQUESTS,
        "a bad request is answered with INVALID_ARGUMENT", "EXECUTION-after.error.sync-*",
        modes=frozenset({SYNC}), run=_crashes,
    ),
    "request.dimensions.due": Fault(
        "wants dimensions in the request that the model says already", "FAIL", "STATUS", REQUESTS,
        "dimensions may be left out when the model is fully specified", "MEMORY-dimensions.left.out-*",
        run=_refuses(_says_nothing, "an input has no dimensions"),
    ),
    "request.outputs.open": Fault(
        "refuses models whose outputs have unknown sizes", "FAIL", "STATUS", REQUESTS,
        "an output may be not fully specified, but in fenced execution", "DYNAMIC_SHAPES-output.*",
        modes=EVERY_MODE - {FENCED}, run=_refuses(_open_outputs, "an output is not fully specified"),
    ),
    "request.outputs.zero": Fault(
        "refuses a 0 among the dimensions of an output", "FAIL", "STATUS", REQUESTS,
        "a 0 among the dimensions given for an output means unspecified", "DYNAMIC_SHAPES-output.half.told-*",
        run=_refuses(_zeros, "an output has a dimension of 0"),
    ),
    "request.overlap": Fault(
        "refuses inputs that lie on one another", "FAIL", "STATUS", REQUESTS,
        "inputs may lie on one another", "MEMORY-overlapping.inputs-*", run=_refuses(_overlap, "inputs overlap"),
    ),
    "request.mapped_file": Fault(
        "does not know memory-mapped files", "FAIL", "STATUS", REQUESTS, "each kind of pool is taken",
        "MEMORY-pool.mmap.fd-*", run=_refuses(_of_kind("mmap_fd"), "mapped files are not known"),
    ),
    "request.hardware_buffer": Fault(
        "does not know hardware buffers", "FAIL", "STATUS", REQUESTS, "each kind of pool is taken",
        "MEMORY-pool.hardware.buffer-*", run=_refuses(_of_kind("hardware_buffer"), "hardware buffers are not known"),
    ),
    "request.alignment": Fault(
        "needs an alignment of 4 bytes", "FAIL", "STATUS", REQUESTS, "a value may lie at any offset",
        "MEMORY-unaligned-*", run=_refuses(_odd_offset, "a value is not aligned"),
    ),
    "request.alignment.values": Fault(
        "computes wrongly where values are not aligned", "FAIL", "VALUE", REQUESTS, "a value may lie at any offset",
        "MEMORY-unaligned-*", run=_aligned_down,
    ),
    "request.pools": Fault(
        "takes inputs that have pools of their own from the wrong ones", "FAIL", "VALUE", REQUESTS,
        "each value lies in the pool that the request says", "MEMORY-separate.pools-*-[04]", run=_swaps_inputs,
    ),
    "request.padding": Fault(
        "puts output data into the padding", "FAIL", "VALUE", REQUESTS, "output data does not go into the padding",
        "MEMORY-padding-*", run=_padding_written,
    ),
    "request.padding.read": Fault(
        "computes with the bytes of the padding", "FAIL", "VALUE", REQUESTS, "the content of padding means nothing",
        "MEMORY-padding-*", run=_padding_read,
    ),
    "request.padding.beyond": Fault(
        "writes one byte behind the padding", "FAIL", "OVERRUN", REQUESTS,
        "no more than the padding behind a value may be touched", "MEMORY-padding-*", run=_beyond_padding,
    ),
    "request.padding.due": Fault(
        "refuses outputs without padding", "FAIL", "STATUS", REQUESTS, "padding is offered, not promised",
        "EXECUTION-mode.*", run=_refuses(_needs_padding, "an output has no padding"),
    ),
    "request.inputs": Fault(
        "works in the memory of its inputs", "FAIL", "INPUT_WRITTEN", REQUESTS,
        "inputs are never changed by the driver", "EXECUTION-mode.*", run=_clears_inputs,
    ),
}  # fmt: skip
