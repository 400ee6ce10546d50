"""Detection of objects against plain loops; the layouts, sizes and margins of draws; rows in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from harness.case import Action, Origin, Returns, dump, load, parts_of
from harness.judge import Verdict, judge_execution
from harness.make import expected_outputs, positive_case, row_groups
from harness.run import StepOutcome
from nnhal.operations import Signature
from nnhal.types import Array, ErrorStatus, OperandType
from opset import OPSET, detection
from opset.call import Call, scalar
from opset.definition import Q8, Q8S, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import allowance, run_call
from opset.graph import evaluate, model_of
from opset.quantization import QUANTIZED, limits, round_half_away
from opset.source import SeededSource
from opset.validation import violations
from tests import detection_opinion as opinion
from tests.judging import complaints_on_variants, draws, verdicts

DEFINITIONS = tuple(getattr(detection, name) for name in detection.__all__)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]
