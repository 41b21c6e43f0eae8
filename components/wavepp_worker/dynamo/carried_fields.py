"""What Dynamo's frontend drops from a request and workers honour: it travels in ``nvext.annotations``. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wavepp_worker.errors import InvalidRequest

CARRYING_PATHS = ("/v1/completions", "/v1/chat/completions")
_OWN = "wavepp."
_BIAS = _OWN + "logit_bias:"


def refused_annotation(body: Mapping[str, Any]) -> str | None:
    """Why a client's body is refused that has annotations as the proxy writes them; None if it has none."""
    nvext = body.get("nvext")
    annotations = nvext.get("annotations") if isinstance(nvext, Mapping) else None
    for each in annotations if isinstance(annotations, list) else []:
        if isinstance(each, str) and each.startswith(_OWN):
            return (
                f"nvext.annotations that begin with {_OWN} are not for clients; leave them out, and give logit_bias as "
                "a field of the request"
            )
    return None


def with_carried(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """A body that the frontend passes all of on; None if it would do so anyway.

    Args:
        body: of a request to one of ``CARRYING_PATHS``.
    """
    if not body.get("logit_bias"):
        return None
    nvext = body.get("nvext") or {}
    annotations = nvext.get("annotations") or [] if isinstance(nvext, Mapping) else None
    if not isinstance(annotations, list):
        # The frontend says what is wrong with it.
        return None
    carried = [*annotations, _BIAS + json.dumps(body["logit_bias"])]
    rest = {key: value for key, value in body.items() if key != "logit_bias"}
    return {**rest, "nvext": {**nvext, "annotations": carried}}


def carried_options(request: Mapping[str, Any]) -> dict[str, Any]:
    """What was carried to a worker, by the keys of its ``sampling_options``.

    Raises:
        InvalidRequest: it cannot be read.
    """
    annotations = request.get("annotations")
    for each in annotations if isinstance(annotations, list) else []:
        if isinstance(each, str) and each.startswith(_BIAS):
            try:
                return {"logit_bias": json.loads(each.removeprefix(_BIAS))}
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(f"the annotation {_BIAS} is not followed by JSON: {error}") from error
    return {}
