"""Small seeded networks that several tests share."""

from __future__ import annotations

import functools

import numpy as np

from mlts import nets
from mlts.nets.seeding import seeded
from mlts.pictures import smooth


@functools.cache
def small_networks():
    """Small seeded networks by name, with real inputs in front of them."""
    made = {}
    for name, width in (("mobilenet_v1", 0.25), ("mobilenet_v2", 0.35)):
        made[name] = getattr(nets, name)(seeded(name, width, 3), width, 32)
    return made, [[p.astype(np.float32)[None] / 128 - 1] for p in smooth(32, 32, 6, 4)]
