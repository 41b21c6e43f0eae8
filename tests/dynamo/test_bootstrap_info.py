from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.dynamo.bootstrap_info import (
    advertised_host,
    bootstrap_address,
    chosen_bootstrap_room,
    disaggregated_params,
    failure_reason,
    fresh_bootstrap_room,
    invalid_request_in,
)
from wavepp_worker.errors import HandoffError, InvalidRequest
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.handoff.secret import Secret

KEY = Secret.fresh()
ADDRESS = BootstrapAddress(host="10.0.0.1", port=4242, room=7, secret=KEY.for_room(7))
INFO = {"bootstrap_host": advertised_host("10.0.0.1", KEY), "bootstrap_port": 4242, "bootstrap_room": 7}


def request(**fields: Any) -> Any:
    return {"token_ids": [1], **fields}


def test_the_frontend_may_choose_the_bootstrap_room_or_leave_it_to_prefill() -> None:
    assert chosen_bootstrap_room(request(bootstrap_info=INFO)) == 7
    assert chosen_bootstrap_room(request(bootstrap_info={**INFO, "bootstrap_room": 0})) == 0
    assert chosen_bootstrap_room(request(bootstrap_info=None)) is None
    assert chosen_bootstrap_room(request()) is None
    rooms = {fresh_bootstrap_room() for _ in range(100)}
    assert len(rooms) == 100
    assert all(0 <= room < 2**63 for room in rooms)


def test_decode_finds_the_prefill_either_way() -> None:
    assert bootstrap_address(request(bootstrap_info=INFO)) == ADDRESS
    result = {"disaggregated_params": disaggregated_params(ADDRESS)}
    assert bootstrap_address(request(prefill_result=result)) == ADDRESS


@pytest.mark.parametrize("fields", [{}, {"prefill_result": {}}, {"prefill_result": None}])
def test_a_request_without_a_prefill_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="no prefill worker has seen"):
        bootstrap_address(request(**fields))


def test_params_of_another_schema_are_refused() -> None:
    params = {**disaggregated_params(ADDRESS), "schema": "x.v9"}
    with pytest.raises(InvalidRequest, match=r"schema 'x\.v9'.*understands 'wavepp\.handoff\.v2'"):
        bootstrap_address(request(prefill_result={"disaggregated_params": params}))


def test_the_clients_own_mistake_is_told_from_a_failure() -> None:
    reason = failure_reason(InvalidRequest("shorten it"))
    found = invalid_request_in(f"the prefill failed: {reason}")
    assert str(found) == "shorten it"
    assert invalid_request_in(f"the prefill failed: {failure_reason(HandoffError('rank 1 is gone'))}") is None


def test_a_router_may_have_a_prompt_prefilled_where_it_is_decoded() -> None:
    local = {"token_ids": [1], "annotations": ["x-other", "x-bypass-remote-prefill"]}
    assert bootstrap_address(local) is None
    with pytest.raises(InvalidRequest, match="no router asks it to prefill that itself"):
        bootstrap_address({"token_ids": [1], "annotations": ["x-other"]})
    address = BootstrapAddress(host="127.0.0.1", port=1, room=2, secret=Secret.fresh())
    seen = {"prefill_result": {"disaggregated_params": disaggregated_params(address)}}
    assert bootstrap_address({**local, **seen}) == address, "it is prefilled already"
