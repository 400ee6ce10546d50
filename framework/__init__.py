"""The runtime of the CTS path: finds devices, splits models over them, and is itself a Device."""

from framework.device import Framework, NoDeviceError
from framework.events import Event, EventKind
from framework.members import Candidate, LeftOut, Member, discover, installed_candidates, unique_names
from framework.plan import Part, Plan

__all__ = [
    "Candidate",
    "Event",
    "EventKind",
    "Framework",
    "LeftOut",
    "Member",
    "NoDeviceError",
    "Part",
    "Plan",
    "discover",
    "installed_candidates",
    "unique_names",
]
