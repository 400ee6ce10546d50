"""Detection of objects: the definitions are in the modules named here; `detection_boxes` has what they share."""

from __future__ import annotations

from opset.detection_align import ROI_ALIGN
from opset.detection_keypoints import HEATMAP_MAX_KEYPOINT
from opset.detection_moves import AXIS_ALIGNED_BBOX_TRANSFORM
from opset.detection_outcome import DETECTION_POSTPROCESSING
from opset.detection_pooling import ROI_POOLING
from opset.detection_proposals import GENERATE_PROPOSALS
from opset.detection_suppression import BOX_WITH_NMS_LIMIT

__all__ = [
    "AXIS_ALIGNED_BBOX_TRANSFORM",
    "BOX_WITH_NMS_LIMIT",
    "DETECTION_POSTPROCESSING",
    "GENERATE_PROPOSALS",
    "HEATMAP_MAX_KEYPOINT",
    "ROI_ALIGN",
    "ROI_POOLING",
]
