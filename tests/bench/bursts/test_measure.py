"""Cells on the virtual clock, without host time, so that every run is the same."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import msgspec
import pytest
from wavepp_worker.errors import RequestFailed

from bench.bursts.measure import ask_sessions, measure_virtual
from bench.bursts.traffic import Agents, Burst, BurstCell, Tree, Unshared

KV_TOKENS = 400_000
CELLS = (Burst(2, 16, 4096), Tree(2048, 4, 4096, 4), Agents(4, turns=3))


@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_what_is_shared_is_computed_once(cell: BurstCell, stages: int) -> None:
    making = measure_virtual(cell, stages, True, KV_TOKENS, charge=0.0)
    without = measure_virtual(cell, stages, False, KV_TOKENS, charge=0.0)
    assert making.computed == making.least < without.computed
    assert making.bound <= making.forced <= making.seconds < without.seconds
    assert making.p95 <= without.p95


@pytest.mark.parametrize("cell", [Unshared(1, 8192), Unshared(8, 4096)], ids=lambda cell: cell.name)
def test_requests_that_share_nothing_take_the_time_they_took(cell: BurstCell) -> None:
    making = measure_virtual(cell, 4, True, KV_TOKENS, charge=0.0)
    without = measure_virtual(cell, 4, False, KV_TOKENS, charge=0.0)
    assert msgspec.structs.replace(making, making=False) == without


@pytest.mark.parametrize("stages", [1, 8])
@pytest.mark.parametrize("cell", CELLS[:2], ids=lambda cell: cell.name)
def test_layers_that_resume_from_snapshots_compute_what_is_shared_once(cell: BurstCell, stages: int) -> None:
    """Though nobody would take a snapshot there by itself."""
    making = measure_virtual(cell, stages, True, KV_TOKENS, interval=65_536, charge=0.0)
    without = measure_virtual(cell, stages, False, KV_TOKENS, interval=65_536, charge=0.0)
    assert making.computed == making.least < without.computed == without.tokens
    assert making.seconds < without.seconds


def test_of_those_who_come_too_late_for_a_snapshot_one_computes_for_all_others() -> None:
    """On one stage the first of all runs before the others are heard of."""
    cell = Burst(2, 16, 4096)
    making = measure_virtual(cell, 1, True, KV_TOKENS, interval=8192)
    assert making.computed <= making.least + 2 * cell.prefix


def test_a_prompt_that_fails_is_no_figure() -> None:
    class Engine:
        def submit(self, request: Any) -> Future[Any]:
            answer: Future[Any] = Future()
            if request.request_id == "cell-1-0":
                answer.set_exception(RequestFailed("no room"))
            else:
                answer.set_result(request.request_id)
            return answer

    with pytest.raises(RequestFailed, match="no room"):
        ask_sessions(Engine(), [[b"a", b"b"], [b"c"]], "cell")  # type: ignore[arg-type]
    answers = ask_sessions(Engine(), [[b"a", b"b"]], "cell")  # type: ignore[arg-type]
    assert answers == ["cell-0-0", "cell-0-1"]
