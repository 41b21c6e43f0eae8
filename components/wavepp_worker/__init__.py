"""WavePP: a pipeline-parallel prefill worker for NVIDIA Dynamo. What is exported here is the Python interface.

docs/python.md shows each name in use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavepp_worker.errors import (
        AuditError,
        ConfigError,
        EngineDead,
        HandoffError,
        InvalidRequest,
        QueueError,
        RequestAborted,
        RequestFailed,
        RequestTimeout,
        WaveppError,
    )
    from wavepp_worker.intake.messages import Job, JobResult
    from wavepp_worker.intake.prefill_queue import PrefillQueue
    from wavepp_worker.model.sampling_params import SamplingParams
    from wavepp_worker.runtime.client.engine import PrefillEngine
    from wavepp_worker.runtime.protocol.engine_config import EngineConfig
    from wavepp_worker.runtime.protocol.index_delta import IndexDelta
    from wavepp_worker.runtime.protocol.load import EngineStats
    from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult

__all__ = [
    "AuditError",
    "ConfigError",
    "EngineConfig",
    "EngineDead",
    "EngineStats",
    "HandoffError",
    "IndexDelta",
    "InvalidRequest",
    "Job",
    "JobResult",
    "PrefillEngine",
    "PrefillQueue",
    "PrefillRequest",
    "PrefillResult",
    "QueueError",
    "RequestAborted",
    "RequestFailed",
    "RequestTimeout",
    "SamplingParams",
    "WaveppError",
]

_HOMES = {
    "EngineConfig": "runtime.protocol.engine_config",
    "EngineStats": "runtime.protocol.load",
    "IndexDelta": "runtime.protocol.index_delta",
    "Job": "intake.messages",
    "JobResult": "intake.messages",
    "PrefillEngine": "runtime.client.engine",
    "PrefillQueue": "intake.prefill_queue",
    "PrefillRequest": "runtime.protocol.requests",
    "PrefillResult": "runtime.protocol.requests",
    "SamplingParams": "model.sampling_params",
}
"""The module of each public name that is not an error."""


def __getattr__(name: str) -> Any:
    """Load the public names on first use: the launcher and ``--help`` should not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return list(__all__)
