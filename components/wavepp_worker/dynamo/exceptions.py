"""Our errors as Dynamo's, which decide the HTTP status a client sees."""

from __future__ import annotations

from dynamo.llm.exceptions import Cancelled, EngineShutdown, InvalidArgument, Unknown

from wavepp_worker.errors import EngineDead, InvalidRequest, RequestAborted, WaveppError


def to_dynamo_exception(error: WaveppError) -> Exception:
    """The Dynamo exception to raise for one of ours.

    EngineShutdown makes newer frontends stop using the worker, so only a dead engine may raise it.
    """
    match error:
        case InvalidRequest():
            return InvalidArgument(str(error))
        case RequestAborted():
            return Cancelled(str(error))
        case EngineDead():
            return EngineShutdown(str(error))
        case _:
            return Unknown(f"{type(error).__name__}: {error}")
