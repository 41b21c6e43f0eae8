"""Short campaigns with fixed seeds: drawn requests, damaged messages at every port, and what they once found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fuzz.findings import Findings
from tests.fuzz.found_requests import FOUND
from tests.fuzz.graph_under_fuzz import fuzzed_graph
from tests.fuzz.http_campaign import ANSWER_SECONDS, HttpCampaign
from tests.fuzz.http_client import send
from tests.fuzz.listening import listening, reachable_by_others
from tests.fuzz.port_campaign import PortCampaign, processes
from tests.fuzz.target import Target

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def target(ascii_model: Path) -> Iterator[Target]:
    with fuzzed_graph("disagg_wavepp", ascii_model) as graph:
        yield Target(graph)


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_is_answered_and_hurts_nobody(target: Target, what: str) -> None:
    model = target.graph.running.model.encode()
    request = FOUND[what]
    body = request.body.replace(b'"model":"model"', b'"model":"' + model + b'"')
    request = type(request)(request.method, request.target, request.headers, body, request.manner)
    answer = asyncio.run(send(*target.address, request, ANSWER_SECONDS))
    assert answer.status is not None
    assert not answer.failed, answer.raw[-600:]
    assert (target.deaths(), target.plain()) == (None, None)


def test_nobody_makes_the_frontend_turn_others_away(target: Target) -> None:
    """Clients must not set the load at which requests are refused."""
    body = {"model": target.graph.running.model, "active_prefill_tokens_threshold": 0}
    answer = httpx.post(f"{target.graph.running.base_url}/busy_threshold", json=body, timeout=30)
    assert answer.status_code == 403
    assert target.plain() is None


def test_drawn_requests(target: Target) -> None:
    findings = Findings()
    campaign = HttpCampaign(target, findings)
    campaign.run(240, seed=1)
    assert not len(findings), str(findings)
    assert campaign.outcomes["200"] > 20, campaign.outcomes


def test_damaged_messages_at_every_port(target: Target) -> None:
    findings = Findings()
    campaign = PortCampaign(target, findings)
    campaign.run(1_500, seed=1)
    assert not len(findings), str(findings)
    expected = {"bootstrap", "pull", "frontend", "system", "event broker"}
    assert expected <= campaign.messages.keys(), campaign.ports


def test_socket_files_are_for_this_user_alone(target: Target) -> None:
    """What ranks tell each other, and KV events: those have the token ids of prompts in them."""
    files = [each.path for each in listening(processes(target)) if each.path]
    expected = {"commands", "events", "rounds-1", "data-0", "data-1", "events-in", "events-out"}
    assert expected <= {Path(file).name for file in files}
    assert [file for file in files if reachable_by_others(file)] == []


def test_nothing_listens_beyond_loopback(target: Target) -> None:
    """NIXL's UCX did, on every network device, and lets whoever connects read and write memory."""
    hosts = {each.host for each in listening(processes(target)) if each.port}
    assert hosts <= {"127.0.0.1", "::1"}
