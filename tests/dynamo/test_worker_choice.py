from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.dynamo.worker_choice import refused_header, refused_nvext


@pytest.mark.parametrize("name", ["x-worker-instance-id", "x-dynamo-prefill-instance-id", "x-dp-rank"])
def test_headers_that_choose_a_worker_are_refused(name: str) -> None:
    assert name in (refused_header({name: "5"}) or "")
    assert refused_header({"x-request-id": "5"}) is None


@pytest.mark.parametrize(
    "nvext",
    [
        {"backend_instance_id": 5},
        {"prefill_worker_id": 0},
        {"decode_worker_id": 1},
        {"routing_constraints": {"required_taints": ["x"]}},
        {"token_data": [1]},
        {"metadata_upload": {"url": "http://127.0.0.1:1/"}},
    ],
)
def test_what_a_client_does_not_decide_is_refused_by_name(nvext: dict[str, Any]) -> None:
    (field,) = nvext
    assert f"nvext.{field}" in (refused_nvext({"nvext": nvext}) or "")


@pytest.mark.parametrize(
    "nvext", [None, {}, 1, {"backend_instance_id": None}, {"extra_fields": ["worker_id"], "cache_salt": "a"}]
)
def test_everything_else_passes(nvext: Any) -> None:
    assert refused_nvext({"nvext": nvext}) is None
