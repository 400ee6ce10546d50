"""Detection of objects against plain loops; the sizes and margins of draws; rows that may come in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.case import Origin
from harness.case_file import load, save
from harness.expectations import Returns
from harness.judge import judge_execution
from harness.make import positive_case
from harness.outcome import StepOutcome
from harness.verdict import Verdict
from nnhal.operations import Signature
from nnhal.types import Array, ErrorStatus
from opset import detection
from opset.call import Call
from opset.definition import F32, Q8, Q8S, OperationDef
from opset.detection_boxes import BOX_SCALE
from opset.detection_keypoints import LONGEST_STEP, _refine
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import allowance, run_call
from opset.graph import evaluate, model_of
from opset.quantization import QUANTIZED, limits
from opset.source import SeededSource
from opset.validation import violations
from opset.values import Values
from tests import detection_opinion as opinion
from tests.judging import complaints_on_variants, draws, verdicts
from tests.thorough import one_in_three

DEFINITIONS: tuple[OperationDef, ...] = tuple(getattr(detection, name) for name in detection.__all__)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]
LOOPS: dict[str, Callable[[Call], Array | Mapping[str, Array]]] = {
    "AXIS_ALIGNED_BBOX_TRANSFORM": opinion.bbox_transform,
    "BOX_WITH_NMS_LIMIT": opinion.box_with_nms_limit,
    "DETECTION_POSTPROCESSING": opinion.detection_postprocessing,
    "GENERATE_PROPOSALS": opinion.generate_proposals,
    "HEATMAP_MAX_KEYPOINT": opinion.heatmap_max_keypoint,
    "ROI_ALIGN": opinion.roi_align,
    "ROI_POOLING": opinion.roi_pooling,
}
GROUPED = [pair for pair in SIGNATURES if pair[0].judging.grouped_by]


def in_steps(call: Call, name: str, real: Array) -> Array:
    """Real results as `Result.exact` has them: saturated steps where quantised."""
    argument = call.results[name]
    if argument.type not in QUANTIZED:
        return real
    return np.clip(real / argument.scale + argument.zero_point, *limits(argument.type))


@pytest.mark.parametrize(("definition", "signature"), one_in_three(SIGNATURES), ids=IDS)
def test_kernels_agree_with_loops(definition: OperationDef, signature: Signature) -> None:
    open_ = total = 0
    for call in draws(definition, signature, 40, "loops"):
        due = LOOPS[definition.name](call)
        due = due if isinstance(due, Mapping) else {"output": due}
        results = run_call(call)
        allowed = allowance(call, results)
        assert list(due) == list(results)
        for name, result in results.items():
            assert result.exact.shape == due[name].shape
            judged = np.isfinite(allowed[name].required)
            open_, total = open_ + (~judged).sum(), total + judged.size
            # A Newton step near a singular matrix loses digits, in float64 too.
            tolerance = 1e-7 if definition.name.startswith("HEATMAP") else 1e-9
            want = in_steps(call, name, due[name])
            assert np.allclose(result.exact[judged], want[judged], rtol=tolerance, atol=tolerance), name
    assert open_ <= 0.12 * total


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 70) == []


@pytest.mark.parametrize("kind", [Q8, Q8S], ids=["unsigned", "signed"])
def test_weights_in_fixed_point_pass(kind: int) -> None:
    """Public code rounds the weights of ROI_ALIGN to 1/255: legal, since drawn output scales are coarse enough."""
    signature = next(s for s in detection.ROI_ALIGN.signatures if s.row.types["feature"] == kind)
    for call in draws(detection.ROI_ALIGN, signature, 40, "fixed"):
        output = call["output"]
        steps = in_steps(call, "output", opinion.roi_align(call, whole_weights=True))
        stored = np.floor(steps + 0.5).astype(output.value.dtype)
        assert not any(word.startswith("FAIL") for word in verdicts(call, {"output": stored}))


# --- draws ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_draws_reach_every_path() -> None:
    seen: Counter[str] = Counter()
    for definition, signature in SIGNATURES:
        for call in draws(definition, signature, 60, "paths"):
            seen.update(f"{definition.name} {word}" for word in paths(call))
    for word in (
        "AXIS_ALIGNED_BBOX_TRANSFORM cut at 0", "AXIS_ALIGNED_BBOX_TRANSFORM cut at the end",
        "BOX_WITH_NMS_LIMIT kernel 0", "BOX_WITH_NMS_LIMIT kernel 1", "BOX_WITH_NMS_LIMIT kernel 2",
        "BOX_WITH_NMS_LIMIT limited", "BOX_WITH_NMS_LIMIT several images",
        "DETECTION_POSTPROCESSING regular", "DETECTION_POSTPROCESSING fast", "DETECTION_POSTPROCESSING unused",
        "DETECTION_POSTPROCESSING full", "DETECTION_POSTPROCESSING longer deltas",
        "GENERATE_PROPOSALS before", "GENERATE_PROPOSALS after", "GENERATE_PROPOSALS nchw",
        "HEATMAP_MAX_KEYPOINT long step", "HEATMAP_MAX_KEYPOINT no step", "HEATMAP_MAX_KEYPOINT nchw",
        "ROI_ALIGN adaptive", "ROI_ALIGN small", "ROI_ALIGN nchw", "ROI_ALIGN saturated",
        "ROI_POOLING empty bin", "ROI_POOLING nchw",
    ):  # fmt: skip
        assert seen[word] >= 5, f"{word}: {seen[word]}"


def paths(call: Call) -> list[str]:
    """What a drawn call makes use of."""
    name, words = call.definition.name, []
    if call.has("nchw") and call["nchw"].item():
        words.append("nchw")
    if name.startswith("AXIS"):
        real = opinion.real(call, "image_info")
        results = opinion.bbox_transform(call)
        ends = np.tile(real[call["batches"].value][:, [1, 0]], results.shape[1] // 2)
        words += ["cut at 0"] * bool((results == 0).any()) + ["cut at the end"] * bool((results == ends).any())
    elif name.startswith("BOX"):
        words.append(f"kernel {call.integer('kernel')}")
        counts = Counter(call["batches_out"].value.tolist())
        words += ["limited"] * (max(counts.values()) == call.integer("max_num_detections"))
        words += ["several images"] * (len(counts) > 1)
    elif name.startswith("DETECTION"):
        words.append("regular" if call["use_regular_nms"].item() else "fast")
        used = call["num_detections"].value
        words.append("unused" if used.min() < call["scores_out"].shape[1] else "full")
        words += ["longer deltas"] * (call["deltas"].shape[2] > 4)
    elif name.startswith("GENERATE"):
        words += ["before"] * (call.integer("pre_nms_max") > 0) + ["after"] * (call.integer("post_nms_max") > 0)
    elif name.startswith("HEATMAP"):
        steps = _refine(Values(call)).steps
        words += ["long step"] * bool(np.isclose(np.abs(steps), LONGEST_STEP).any())
        words += ["no step"] * bool((steps == 0).all(axis=-1).any())
    elif name == "ROI_ALIGN":
        words += ["adaptive"] * (call.integer("sampling_h") == 0)
        words += ["small"] * any(x2 - x1 < 1 for _, (x1, _, x2, _) in opinion.regions(call))
        kind = call["output"].type
        words += ["saturated"] * (kind in QUANTIZED and bool(np.isin(call["output"].value, limits(kind)).any()))
    else:
        sizes = opinion.pixels(call, "feature").shape
        words += ["empty bin"] * any(opinion.away(x1) >= sizes[2] for _, (x1, *_) in opinion.regions(call))
    return words


@pytest.mark.parametrize("definition", [detection.BOX_WITH_NMS_LIMIT, detection.GENERATE_PROPOSALS],
                         ids=lambda d: d.name)  # fmt: skip
def test_models_leave_open_what_values_decide(definition: OperationDef) -> None:
    for signature in definition.signatures:
        call = next(draws(definition, signature, 1, "open"))
        model, values = model_of(call)
        declared = [model.main.operands[i].dimensions for i in model.main.output_indexes]
        assert declared == [tuple(shape) for shape in definition.infer(call).values()]
        for result, argument in zip(evaluate(model, values), call.results.values(), strict=True):
            assert np.array_equal(result.stored, argument.value)
            assert argument.shape == argument.value.shape


def test_regions_come_from_a_producer_and_may_be_none() -> None:
    """Boxes behind BOX_WITH_NMS_LIMIT in one scope; at times there are none at all."""
    counts: Counter[bool] = Counter()
    for number in range(400):
        kind = number % 4
        scope = Scope(SeededSource(f"chain/{number}"), reuse=100)
        made = draw_call(detection.BOX_WITH_NMS_LIMIT, detection.BOX_WITH_NMS_LIMIT.signatures[kind], scope)
        definition = (detection.ROI_ALIGN, detection.ROI_POOLING)[number % 8 // 4]
        call = draw_call(definition, definition.signatures[kind], scope)
        assert violations(call) == []
        if call["rois"].key == made["rois_out"].key:
            counts[not call["rois"].shape[0]] += 1
            assert call["output"].shape[0] == made["rois_out"].shape[0]
            assert call["batches"].shape == made["batches_out"].shape
    assert min(counts[True], counts[False]) >= 5, counts


def test_no_regions_give_no_results() -> None:
    for definition in (detection.ROI_ALIGN, detection.ROI_POOLING, detection.AXIS_ALIGNED_BBOX_TRANSFORM,
                       detection.BOX_WITH_NMS_LIMIT):  # fmt: skip
        for signature in definition.signatures:
            call = next(draws(definition, signature, 1, "none"))
            for name in ("rois", "batches", "deltas", "scores"):
                if call.has(name):
                    empty = (0, *call[name].shape[1:])
                    call = call.with_input(name, replace(call[name], shape=empty, value=call[name].value[:0]))
            due = definition.infer(call)
            assert violations(call) == []
            for name, result in run_call(call).items():
                assert result.stored.shape == due[name]


def test_boxes_have_one_scale() -> None:
    for definition, signature in SIGNATURES:
        for name, kind in signature.row.types.items():
            call = next(draws(definition, signature, 1, "scale"))
            if "QUANT16" in kind.name:
                assert (call[name].scale, call[name].zero_point) == (BOX_SCALE, 0)


# --- rows in any order ------------------------------------------------------------------------------------------------


def returns_of(call: Call) -> Returns:
    expect = positive_case(call, Origin(call.definition.name, "s", "drawn", 0)).steps[-1].expect
    assert isinstance(expect, Returns)
    return expect


def verdict(expect: Returns, outputs: list[Array]) -> Verdict:
    done = StepOutcome(2, ErrorStatus.NONE, outputs=tuple(outputs), shapes=tuple(x.shape for x in outputs))
    return judge_execution(expect, done).verdict


def outputs_of(call: Call) -> list[Array]:
    return [result.stored for result in run_call(call).values()]


@pytest.mark.parametrize(("definition", "signature"), GROUPED, ids=[f"{d.name}-{s.id}" for d, s in GROUPED])
def test_rows_of_an_image_may_come_in_any_order(definition: OperationDef, signature: Signature) -> None:
    rng = np.random.default_rng(5)
    crossed = shuffled = 0
    for call in draws(definition, signature, 40, "order"):
        expect, outputs = returns_of(call), outputs_of(call)
        images = outputs[-1]
        order = np.lexsort((rng.random(len(images)), images))
        assert verdict(expect, [x[order] for x in outputs]) == Verdict.PASS
        if len(images) > 1:
            # One output in another order than the rest: scores that belong to other boxes.
            other = np.roll(np.arange(len(images)), 1)
            assert verdict(expect, [outputs[0][other], *outputs[1:]]) == Verdict.FAIL
            shuffled += 1
        if images[0] != images[-1]:
            assert verdict(expect, [x[::-1] for x in outputs]) == Verdict.FAIL  # images are in order
            crossed += 1
    assert shuffled > 10
    assert crossed > 3


def test_groups_are_saved(tmp_path: Path) -> None:
    signature = detection.GENERATE_PROPOSALS.signature("float32")
    call = next(c for c in draws(detection.GENERATE_PROPOSALS, signature, 50, "save") if c["scores_out"].shape[0] > 2)
    case = positive_case(call, Origin("GENERATE_PROPOSALS", "float32", "drawn", 0))
    save(case, tmp_path / "case")
    again = load(tmp_path / "case").steps[-1].expect
    assert isinstance(again, Returns)
    assert again.groups == returns_of(call).groups
    assert len(again.groups) == call["scores_out"].shape[0]


def test_order_is_due_elsewhere() -> None:
    for definition in DEFINITIONS:
        if not definition.judging.grouped_by:
            call = next(draws(definition, definition.signatures[0], 1, "due"))
            assert returns_of(call).groups == ()
            assert definition.signatures[0].row.types[next(iter(call.results))] == F32
