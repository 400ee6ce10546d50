"""The table of all faults, by name."""

from __future__ import annotations

from drivers import _faults_device, _faults_process
from drivers._faults import Faults

_MODULES = (_faults_process, _faults_device)
FAULTS: Faults = {name: fault for module in _MODULES for name, fault in module.FAULTS.items()}
