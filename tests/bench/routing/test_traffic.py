"""What replicas are asked is the same for every router."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from bench.routing.replica import LONGEST, TOKEN_IDS
from bench.routing.traffic import CLIENTS, OWN, PREFIX, SCALE, probes, replayed, shared


def test_requests_share_as_many_prefixes_as_they_should() -> None:
    workload = shared(3, 40, replicas=2)
    assert workload == shared(3, 40, replicas=2)
    assert workload.clients == 2 * CLIENTS
    assert len({tuple(prompt[:PREFIX]) for prompt in workload.prompts}) == 3
    assert len({tuple(prompt) for prompt in workload.prompts}) == 40
    cold = shared(0, 40, replicas=2)
    assert len({tuple(prompt[:16]) for prompt in cold.prompts}) == 40
    assert {len(prompt) for each in (workload, cold) for prompt in each.prompts} == {PREFIX + OWN}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Turns of one conversation, a minute apart, and a prompt that no replica takes."""
    lines = [
        {"timestamp": 60_000 * turn, "input_length": 512 * (turn + 1), "hash_ids": list(range(turn + 1))}
        for turn in range(8)
    ]
    lines.append({"timestamp": 1, "input_length": SCALE * LONGEST, "hash_ids": list(range(900, 1200))})
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_a_trace_is_shortened_and_keeps_what_its_prompts_share(trace: Path) -> None:
    workload = replayed(trace, 100, replicas=2, load=0.5)
    assert workload.clients == 0
    assert [len(prompt) for prompt in workload.prompts] == [512 // SCALE * turn for turn in range(1, 9)]
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(workload.prompts))
    assert all(token in TOKEN_IDS for prompt in workload.prompts for token in prompt)


def test_a_trace_is_as_fast_as_keeps_the_replicas_busy(trace: Path) -> None:
    half, whole, two = (
        replayed(trace, 100, replicas, load).at for replicas, load in ((1, 0.5), (1, 1.0), (2, 1.0))
    )
    assert half[0] == 0
    assert half[-1] == pytest.approx(2 * whole[-1]) == pytest.approx(4 * two[-1])


def test_probes_begin_as_earlier_prompts_and_probes_do_or_are_new() -> None:
    workload = shared(2, 10, replicas=2)
    made = probes([workload], 60)
    assert made == probes([workload], 60)
    beginnings = {tuple(prompt[:64]) for prompt in workload.prompts}
    begun = sum(tuple(prompt[:64]) in beginnings for prompt in made)
    later = sum(
        any(len(one) > 64 and probe[: len(one)] == one for one in made[:number])
        for number, probe in enumerate(made)
    )
    assert 15 < begun < 55
    assert later > 5
    assert all(1 <= len(prompt) <= LONGEST for prompt in made)
