"""The errors a caller can meet, each a sentence: what was asked, what is possible, what to change."""

from __future__ import annotations


class WaveppError(Exception):
    """Base of every error this package raises on purpose."""


def error_text(error: BaseException) -> str:
    """What an error says, to be quoted in another sentence: of one of ours its own sentence, else its type, too."""
    return str(error) if isinstance(error, WaveppError) else f"{type(error).__name__}: {error}"


class ConfigError(WaveppError):
    """The configuration cannot work; the message names the key to change. Raised before anything starts."""


class InvalidRequest(WaveppError):
    """One request is wrong (maps to HTTP 4xx); no other request is affected."""


class JobTooLarge(InvalidRequest):
    """A job is larger than its queue takes; the message says how large one may be."""


class RequestAborted(WaveppError):
    """The request was cancelled by its caller before it finished."""


class RequestTimeout(WaveppError):
    """A request, or its KV, took longer than it may; the message says which limit that is."""


class StepTimeout(WaveppError):
    """A thread takes longer for a step, or what it waits for does, than it may; the message says what it does."""


class RequestFailed(WaveppError):
    """A worker could not do something that this one request needs; no other request is affected."""


class EngineDead(WaveppError):
    """A rank or its worker process died; every request in flight fails with this (maps to HTTP 5xx)."""


class WorkerPaused(WaveppError):
    """An operator has paused the worker, or it could not be paused or resumed; another may take the request."""


class WorkerStarting(WaveppError):
    """A worker does not serve everything yet; the message says what is missing."""


class HandoffError(WaveppError):
    """KV could not be transferred; the message names the request and the peer."""


class HandoffMismatch(HandoffError):
    """KV is offered that cannot be used here, such as another model's; the message says what to set alike."""


class PlaneUnreached(WaveppError):
    """A server is not there that Dynamo itself needs; says which, and what to set."""


class QueueError(WaveppError):
    """A queue of jobs cannot be used: its server is not reached, or it is full, or has lost a job."""


class PositionMismatch(WaveppError):
    """A schedule asks for a position other than the one this rank has computed up to.

    Running on would compute activations against the wrong cache state, so the rank stops (paper,
    section 4.6).
    """


class AuditError(WaveppError):
    """At rest, some block, lease or reservation is still held; the message lists them."""


class CacheCorrupt(WaveppError):
    """Bytes read back from a cache tier are not those written. Found in time, only that copy is gone."""
