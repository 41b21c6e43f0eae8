"""Generated traces: the same for a seed, of the promised kind, and in the format of public ones."""

from __future__ import annotations

import pytest
from wavepp_worker.runtime.planning.wave_cost import WaveCost

from bench.trace.file import TRACE_BLOCK, cached_tokens, rate_for_load, reusable
from bench.trace.generate import KINDS, generate


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_seed_draws_the_same_trace_in_order(kind: str) -> None:
    trace = generate(kind, 200, seed=3)
    assert trace == generate(kind, 200, seed=3)
    assert trace != generate(kind, 200, seed=4)
    assert len(trace) == 200
    assert [each.timestamp for each in trace] == sorted(each.timestamp for each in trace)
    assert all(len(each.hash_ids) == -(-each.input_length // TRACE_BLOCK) for each in trace)


def test_only_sessions_share_prefixes() -> None:
    assert {kind: reusable(generate(kind, 300)) > 0.3 for kind in KINDS} == {
        "uniform": False,
        "heavy": False,
        "bursts": False,
        "sessions": True,
    }


def test_a_load_is_what_the_stages_have_to_do_in_the_time_it_comes() -> None:
    trace, cost = generate("sessions", 100), WaveCost(0.5, 1e-4, 0.0)
    rate = rate_for_load(trace, 0.5, cost, 1000)
    computed = sum(each.input_length for each in trace) - sum(cached_tokens(trace))
    seconds = (trace[-1].timestamp - trace[0].timestamp) / 1000 / rate
    assert computed * (1e-4 + 0.5 / 1000) == pytest.approx(0.5 * seconds)
