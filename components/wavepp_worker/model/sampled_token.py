"""A token that was chosen, as it travels. Apart from the choosing, as those that pass it on need no tensors."""

from __future__ import annotations

import msgspec


class SampledToken(msgspec.Struct, frozen=True):
    """A chosen token.

    Attributes:
        token: its id.
        logprob: its natural-log probability under the unmodified distribution (temperature 1, no penalty);
            None unless asked for.
        top: ``(token id, logprob)``, best first; empty unless asked for.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
