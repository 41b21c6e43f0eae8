"""How a prefill worker takes jobs from a queue: one place, validated at start, errors name the key."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from wavepp_worker.former_names import LONGEST_SECONDS, Settings


class IntakeConfig(Settings):
    """Where a prefill worker's requests come from. Every field is also a flag of the same name with dashes."""

    intake: Literal["endpoint", "nats", "nats-alone"] = "endpoint"
    """``nats`` takes jobs from a NATS JetStream queue as well, ``nats-alone`` such jobs and nothing else; ``endpoint``
    only what Dynamo's frontend routes here."""
    nats_server: str | None = None
    """URLs of the NATS servers, with commas between; default: ``NATS_SERVER`` of the environment, which
    ``dynamo serve`` sets for a server that it starts itself, else ``nats://127.0.0.1:4222``."""
    intake_ahead: int = Field(default=8, ge=1)
    """Most jobs that this replica takes beyond those that it has admitted."""
    intake_attempts: int = Field(default=5, ge=1)
    """How often a job is begun, by whichever replica, until it is given up as dead."""
    intake_silence: float = Field(default=15.0, ge=1, le=LONGEST_SECONDS)
    """Seconds after which others take a job whose replica is not heard of."""

    @property
    def takes_jobs(self) -> bool:
        """Whether there are any."""
        return self.intake != "endpoint"
