"""Which prompts a decode worker has prefilled through a queue: one place, validated at start, errors name the key."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from wavepp_worker.former_names import LONGEST_SECONDS, Settings


class RemotePrefillConfig(Settings):
    """Where a worker that prefills and generates has its prompts prefilled. Every field is also a flag."""

    remote_prefill: Literal["none", "nats"] = "none"
    """``nats`` has long prompts prefilled by workers that take jobs from a NATS JetStream queue; ``none`` prefills all
    of them here."""
    nats_server: str | None = None
    """URLs of the NATS servers, with commas between; default: ``NATS_SERVER`` of the environment, which
    ``dynamo serve`` sets for a server that it starts itself, else ``nats://127.0.0.1:4222``."""
    max_local_prefill_length: int = Field(default=1000, ge=0)
    """Most tokens of a prompt, without those whose KV is here already, that this worker prefills itself in any case."""
    max_prefill_queue_size: int = Field(default=2, ge=0)
    """Jobs in the queue from which on this worker prefills longer ones itself, too."""
    remote_prefill_patience: float = Field(default=10.0, gt=0, le=LONGEST_SECONDS)
    """Seconds after which this worker prefills itself what no prefill worker has begun."""
    remote_prefill_endpoint: str | None = None
    """Dynamo endpoint, ``NAMESPACE.COMPONENT.ENDPOINT``, of the prefill workers that take these jobs; a job addresses
    the one that Dynamo's KV-aware router chooses of them. Default: ``prefill.generate`` of those that take jobs
    alone."""

    @field_validator("remote_prefill_endpoint")
    @classmethod
    def _three_names(cls, path: str | None) -> str | None:
        if path is None:
            return None
        path = path.removeprefix("dyn://")
        if len(parts := path.split(".")) != 3 or not all(parts):
            raise ValueError(f"should be NAMESPACE.COMPONENT.ENDPOINT, not {path!r}")
        return path
