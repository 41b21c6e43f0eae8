"""Whether to prefill here or through a queue. Pure."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from wavepp_worker.errors import InvalidRequest

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_SHOWN = 200
"""Characters of what is refused: it may be long, and is told to logs."""


class PrefillLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides, per request.

    Attributes:
        max_local_prefill_length: tokens, without those whose KV is here, up to which a prompt is prefilled here.
        max_prefill_queue_size: jobs in the queue from which on longer ones are, too.
    """

    max_local_prefill_length: Count
    max_prefill_queue_size: Count

    def remotely(self, uncached_tokens: int, queued_jobs: int) -> bool:
        """Whether a prompt goes through the queue."""
        return uncached_tokens > self.max_local_prefill_length and queued_jobs < self.max_prefill_queue_size

    def changed(self, body: dict[str, Any]) -> PrefillLimits:
        """The same with some of them changed.

        Raises:
            InvalidRequest: there is no such limit, or it is no number that it can be.
        """
        try:
            return msgspec.convert({**msgspec.structs.asdict(self), **body}, PrefillLimits)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"the limits cannot be {str(body)[:_SHOWN]}: {str(error)[:_SHOWN]}; give max_local_prefill_length or "
                "max_prefill_queue_size, whole numbers of at least 0"
            ) from error
