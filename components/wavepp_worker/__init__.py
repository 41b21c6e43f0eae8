"""WavePP: a pipeline-parallel prefill worker for NVIDIA Dynamo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavepp_worker.runtime.client.engine import PrefillEngine
    from wavepp_worker.runtime.protocol.engine_config import EngineConfig
    from wavepp_worker.runtime.protocol.requests import PrefillResult

__all__ = ["EngineConfig", "PrefillEngine", "PrefillResult"]


def __getattr__(name: str) -> Any:
    """Load the public names on first use: the launcher and ``--help`` should not import torch."""
    if name == "EngineConfig":
        from wavepp_worker.runtime.protocol.engine_config import EngineConfig

        return EngineConfig
    if name == "PrefillEngine":
        from wavepp_worker.runtime.client.engine import PrefillEngine

        return PrefillEngine
    if name == "PrefillResult":
        from wavepp_worker.runtime.protocol.requests import PrefillResult

        return PrefillResult
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
