"""Clients that choose which worker answers them, or where it sends what: refused. Pure.

Dynamo's frontend takes worker ids from headers and from ``nvext``, for gateways that route on their own. Here
its own router does, and a worker that does not exist is an internal error to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HEADERS = (
    "x-dynamo-worker-instance-id",
    "x-worker-instance-id",
    "x-dynamo-prefill-instance-id",
    "x-prefill-instance-id",
    "x-dynamo-dp-rank",
    "x-dp-rank",
    "x-data-parallel-rank",
    "x-dynamo-prefill-dp-rank",
    "x-prefill-dp-rank",
)
_FIELDS = (
    "backend_instance_id",
    "prefill_worker_id",
    "decode_worker_id",
    "dp_rank",
    "prefill_dp_rank",
    "routing_constraints",
    "token_data",
    "metadata_upload",
)
_ROUTER_DECIDES = "is not supported: the router chooses who answers; leave it out"


def refused_header(headers: Mapping[str, str]) -> str | None:
    """Why a request with these headers is refused; None if it is not. Names are in whatever case."""
    return next((f"the header {name} {_ROUTER_DECIDES}" for name in _HEADERS if name in headers), None)


def refused_nvext(body: Mapping[str, Any]) -> str | None:
    """Why a request with this body is refused; None if it is not."""
    nvext = body.get("nvext")
    if not isinstance(nvext, Mapping):
        return None
    for field in _FIELDS:
        if nvext.get(field) is None:
            continue
        match field:
            case "token_data":
                return "nvext.token_data is not supported; give token ids as the prompt of /v1/completions"
            case "metadata_upload":
                return (
                    "nvext.metadata_upload is not supported: nothing is sent to addresses that clients name"
                )
        return f"nvext.{field} {_ROUTER_DECIDES}"
    return None
