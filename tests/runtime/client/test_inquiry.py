"""Why requests wait, asked of an engine with real ranks: one that reads, one without room, one held, one over."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.errors import EngineDead
from wavepp_worker.model.timed.timed_model import Link
from wavepp_worker.runtime.client import inquiry
from wavepp_worker.runtime.client.request_ledger import LiveRequest
from wavepp_worker.runtime.client.whereabouts import Heard
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.whereabouts import Queued, Whereabouts

from tests.support.timed_models import timed_model
from tests.support.waiting import wait_until

BLOCK, POOL = 16, 512


@pytest.fixture(scope="module")
def engine(deep_llama: Path) -> Iterator[PrefillEngine]:
    config = EngineConfig(
        model=deep_llama,
        pp=2,
        dtype="float32",
        block_size=BLOCK,
        kv_tokens=POOL,
        max_num_batched_tokens=BLOCK,
        max_model_len=POOL,
        order="fcfs",
        handoff="socket",
    )
    with PrefillEngine(config) as running:
        yield running


def stop(pid: int) -> None:
    """Stop a process; its threads may run on for a moment after the signal."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    wait_until(lambda: all("State:\tT" in (each / "status").read_text() for each in tasks.iterdir()))


def prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(200) for _ in range(length)]


def test_who_has_no_room_and_who_is_behind_it_is_told(engine: PrefillEngine) -> None:
    """The KV of one that is held takes the room."""
    engine.submit(PrefillRequest.of("held", prompt(1, 20 * BLOCK), handoff=True)).result(60)
    futures = [engine.submit(PrefillRequest.of("large", prompt(2, 25 * BLOCK)))]
    futures.append(engine.submit(PrefillRequest.of("behind", prompt(3, 8))))
    wait_until(lambda: [each.state for each in engine.why()] == ["holding", "no room", "queued"])
    # Queued it is before rank 0 has heard of it, and before the others have.
    wait_until(lambda: "behind 1 request" in engine.why()[2].sentence)
    held, large, behind = engine.why()
    assert isinstance(large.admission, Queued)
    assert (large.admission.needs, large.admission.ahead) == (25 * BLOCK, 0)
    assert 0 < large.admission.room < 25 * BLOCK
    assert (
        f"it needs 400 tokens, and {large.admission.room} tokens can be reserved on rank 0" in large.sentence
    )
    # A round may be open at the moment, which is said as well.
    assert "behind 1 request (first come, first served); the first of them is large" in behind.sentence
    assert (held.ranks, held.prompt_tokens) == ((0, 1), 20 * BLOCK)
    assert large.seconds >= behind.seconds > 0
    engine.abort("held")
    for future in futures:
        future.result(60)
    wait_until(lambda: engine.why() == [])
    assert engine.why("large") == []


def test_a_rank_whose_vote_is_missing_is_named(
    engine: PrefillEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0's WAVE thread answers while it waits for that vote, and forgets nothing that it was told meanwhile."""
    stop(engine.rank_pids[1])
    try:
        first = engine.submit(PrefillRequest.of("first", prompt(4, 40)))
        wait_until(lambda: engine.why("first")[0].ranks == (1,))
        [found] = engine.why("first")
        assert "the vote of rank 1 is missing" in found.sentence
        later = engine.submit(PrefillRequest.of("later", prompt(5, 40)))
        [found] = engine.why("later")
        assert (found.state, found.ranks) == ("queued", (1,))
        monkeypatch.setattr("wavepp_worker.runtime.client.engine.ANSWER_SECONDS", 0.5)
        state = engine.dump_state()
        assert (state["round"]["missing_votes"], state["silent_ranks"]) == ([1], [1])
        assert [each["rank"] for each in state["ranks"]] == [0], (
            "one that goes on is heard, also within a round"
        )
    finally:
        os.kill(engine.rank_pids[1], signal.SIGCONT)
    assert first.result(60).prompt_tokens == later.result(60).prompt_tokens == 40


def test_who_reads_from_whom_is_told(tmp_path: Path) -> None:
    """On devices that take a fifth of a second for a block, so that the writer is not over before the reader comes."""
    (tmp_path / "timed.json").write_bytes(
        msgspec.json.encode(timed_model(token_seconds=0.003, hop=Link(latency=0.0, bandwidth=1e9)))
    )
    config = EngineConfig(
        model=tmp_path,
        pp=2,
        block_size=BLOCK,
        kv_tokens=64 * BLOCK,
        max_model_len=1000,
        max_num_batched_tokens=BLOCK,
    )
    shared = prompt(6, 20 * BLOCK)
    with PrefillEngine(config) as engine:
        futures = [engine.submit(PrefillRequest.of("writer", shared))]
        wait_until(lambda: engine.why("writer")[0].state == "computing")
        futures.append(engine.submit(PrefillRequest.of("reader", [*shared, 1, 2, 3])))
        wait_until(lambda: engine.why("reader")[0].state == "reading")
        writer, reader = engine.why()
        assert "from request writer, which is being computed" in reader.sentence
        assert reader.lane is not None
        assert (reader.lane.after, reader.lane.next) == ("writer", 20 * BLOCK)
        assert writer.lane is not None
        assert writer.lane.waves
        assert writer.lane.next < 20 * BLOCK
        for name, future in zip(("writer", "reader"), futures, strict=True):
            engine.abort(name)
            assert future.exception(60) is not None


def test_kv_that_is_held_is_told_of(engine: PrefillEngine) -> None:
    engine.submit(PrefillRequest.of("held", prompt(5, 40), handoff=True)).result(60)
    [found] = engine.why("held")
    assert (found.state, found.ranks) == ("holding", (0, 1))
    assert [each.request_id for each in engine.why()] == ["held"]
    engine.abort("held")
    wait_until(lambda: engine.why("held") == [])


def test_jobs_and_attempts_are_found_by_what_their_id_begins_with(engine: PrefillEngine) -> None:
    engine.submit(PrefillRequest.of("request-abcdef", prompt(6, 40), handoff=True)).result(60)
    assert [each.request_id for each in engine.why("request")] == ["request-abcdef"]
    assert engine.why("reques") == []
    engine.abort("request-abcdef")
    wait_until(lambda: engine.why() == [])


def test_an_answer_that_is_missing_is_waited_for_only_so_long(
    engine: PrefillEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inquiry, "ANSWER_SECONDS", 0.05)
    engine.submit(PrefillRequest.of("held", prompt(8, 40), handoff=True)).result(60)
    stop(engine.rank_pids[0])
    try:
        future = engine.submit(PrefillRequest.of("unheard", prompt(9, 40)))
        held, unheard = engine.why()
        assert held.state == "holding", "the engine knows that itself"
        assert (unheard.state, unheard.admission) == ("not heard", None)
    finally:
        os.kill(engine.rank_pids[0], signal.SIGCONT)
    assert future.result(60).prompt_tokens == 40
    engine.abort("held")
    wait_until(lambda: engine.why() == [])


def test_an_engine_that_does_not_run_says_so(deep_llama: Path) -> None:
    with pytest.raises(EngineDead, match="call start"):
        PrefillEngine(EngineConfig(model=deep_llama)).why()


def test_those_that_end_while_they_are_asked_for_leave_no_gap(
    engine: PrefillEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load those that came first may all be over by the time that it is known where they are."""
    wait_until(lambda: engine.why() == [])
    names = [f"held {n}" for n in range(5)]
    for n, name in enumerate(names):
        engine.submit(PrefillRequest.of(name, prompt(n, 8), handoff=True)).result(60)
    monkeypatch.setattr(inquiry, "MOST", 2)
    monkeypatch.setattr(inquiry, "ASKED", 4)
    ask, over = engine._inquiry._ask_about, [3, 4]

    def asked(found: Sequence[LiveRequest]) -> tuple[list[Whereabouts], Heard]:
        """Some, and then all that are asked for, come to their end meanwhile."""
        where, heard = ask(found)
        return where[over.pop() if over else 0 :], heard

    monkeypatch.setattr(engine._inquiry, "_ask_about", asked)
    assert [each.request_id for each in engine.why()] == names[:2]
    over[:] = [1]
    assert [each.request_id for each in engine.why()] == names[1:3]
    for name in names:
        engine.abort(name)
