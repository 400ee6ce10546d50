"""The table of all faults, by name."""

from __future__ import annotations

from drivers import (
    _faults_buffers,
    _faults_cache,
    _faults_device,
    _faults_modes,
    _faults_preparation,
    _faults_process,
    _faults_requests,
    _faults_results,
    _faults_time,
    _faults_versions,
)
from drivers._faults import Faults

_MODULES = (
    _faults_process,
    _faults_device,
    _faults_preparation,
    _faults_cache,
    _faults_requests,
    _faults_results,
    _faults_time,
    _faults_modes,
    _faults_buffers,
    _faults_versions,
)
FAULTS: Faults = {name: fault for module in _MODULES for name, fault in module.FAULTS.items()}
