"""What a request loses on its way to workers where Dynamo's frontend drops ``nvext``: refused there. Pure.

What a client itself writes into ``nvext`` is dropped as the operator wants it, but for a salt: who sends one would
share KV with everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavepp_worker.dynamo.request_headers import TENANT_HEADER
from wavepp_worker.log_form import means_yes

VARIABLE = "DYN_DISABLE_FRONTEND_NVEXT"
"""Dynamo's, of the frontend."""
_DROPPED = f"the frontend drops nvext ({VARIABLE})"


def extensions_are_off(environment: Mapping[str, str]) -> bool:
    """Whether a frontend with this environment drops ``nvext``."""
    return means_yes(environment.get(VARIABLE, ""))


def lost_without_extensions(headers: Mapping[str, str], body: Any) -> str | None:
    """Why a request is refused where ``nvext`` is dropped; None if it loses nothing. Names are in whatever case.

    Args:
        body: the decoded JSON body.
    """
    if headers.get(TENANT_HEADER):
        return (
            f"the header {TENANT_HEADER} is not supported here, as {_DROPPED}; give cache_salt in the body of a "
            "completion or a chat"
        )
    if not isinstance(body, Mapping):
        return None
    if body.get("logit_bias"):
        return (
            f"logit_bias is not supported here, as it travels to workers in nvext and {_DROPPED}; leave it out, or "
            "have the variable unset"
        )
    options = body.get("nvext")
    if isinstance(options, Mapping) and options.get("cache_salt"):
        return f"nvext.cache_salt is not supported here, as {_DROPPED}; give cache_salt beside it"
    return None
