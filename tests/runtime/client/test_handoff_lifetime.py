"""KV held for a decode worker: pinned until it is taken, withdrawn or expired, then back in the pool."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.errors import AuditError, HandoffError, RequestAborted
from wavepp_worker.handoff.decode.puller import Puller
from wavepp_worker.handoff.decode.received import Received
from wavepp_worker.handoff.decode.receiver import KVReceiver
from wavepp_worker.handoff.offer import FirstToken, Offer
from wavepp_worker.handoff.prefill.bootstrap_server import BootstrapServer
from wavepp_worker.model.stage import Chunk, StageModel
from wavepp_worker.model.stage_loader import load_stage
from wavepp_worker.runtime.client import rank_processes
from wavepp_worker.runtime.protocol.index_delta import IndexDelta
from wavepp_worker.runtime.protocol.requests import HandedOff, PrefillRequest, PrefillResult

from tests.support import poisoning_rank
from tests.support.handoff_sides import room_of

EXPIRY = 1.5


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Iterator[PrefillEngine]:
    config = EngineConfig(
        model=tiny_llama,
        dtype="float32",
        pp=3,
        max_num_batched_tokens=32,
        kv_tokens=2048,
        max_model_len=2048,
        handoff="socket",
        handoff_timeout=EXPIRY,
    )
    with PrefillEngine(config) as running:
        yield running


def request(name: str, tokens: int) -> PrefillRequest:
    return PrefillRequest.of(name, [(index * 7) % 256 for index in range(tokens)], handoff=True)


async def admitted(engine: PrefillEngine, wanted: PrefillRequest) -> asyncio.Future[PrefillResult]:
    """Submit, and wait until all ranks know the request's secret: who pulls earlier may be refused."""
    event = threading.Event()
    future = engine.submit(wanted, event.set)
    assert await asyncio.to_thread(event.wait, 30)
    return asyncio.wrap_future(future)


def test_finished_kv_stays_held_until_its_time_limit(engine: PrefillEngine) -> None:
    """Promise 17: nobody ever comes for it."""
    engine.submit(request("forgotten", 100)).result(30)
    with pytest.raises(AuditError, match="forgotten"):
        engine.audit(timeout=0.2)
    assert engine.stats().holding == 1
    engine.audit(timeout=EXPIRY + 5)


def test_each_rank_is_told_by_its_process_id_and_its_process_by_its_number(engine: PrefillEngine) -> None:
    pids = [rank.pid for rank in engine.describe().ranks]
    assert len(pids) == 3
    for rank, pid in enumerate(pids):
        assert f"--rank={rank}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def test_an_abort_while_handing_off_frees_at_once(engine: PrefillEngine) -> None:
    """S36: after the prefill, before anybody came."""
    engine.submit(request("unwanted", 100)).result(30)
    begun = time.monotonic()
    engine.abort("unwanted")
    engine.audit()
    assert time.monotonic() - begun < EXPIRY


def test_an_abort_during_execution_withdraws_what_was_offered(engine: PrefillEngine) -> None:
    future = engine.submit(request("halfway", 2000))
    time.sleep(0.1)
    engine.abort("halfway")
    with pytest.raises(RequestAborted):
        future.result(5)
    engine.audit()


def test_every_layer_arrives_while_later_chunks_are_computed(engine: PrefillEngine, tiny_llama: Path) -> None:
    """S42, S44: three ranks to one pool of another block size, pulled from the start."""
    stage = load_stage(tiny_llama, range(6), torch.float32, "cpu")
    kv = stage.make_kv(200, 10)
    ahead: list[bool] = []
    server = BootstrapServer("127.0.0.1", 0, on_cancel=lambda _: None)
    try:

        async def receive() -> Received:
            receiver = KVReceiver(kv, 6, torch.float32, engine.info.model_id, "127.0.0.1")
            future = await admitted(engine, request("taken", 1900))
            server.register(7, engine.offer("taken"))

            async def allocate(offer: Offer) -> torch.Tensor:
                ahead.append(not future.done())
                return torch.arange(190)

            pulling = asyncio.ensure_future(receiver.receive(room_of(server, 7), allocate, 30.0))
            result = await future
            server.finish(7, FirstToken(first=result.first, reused_tokens=result.reused_tokens))
            return await pulling

        received = asyncio.run(receive())
    finally:
        server.close()
    assert ahead == [True]
    assert received.bytes_received == 1900 * kv.bytes_per_token
    table, whole = torch.arange(190), load_stage(tiny_llama, range(6), torch.float32, "cpu")
    expected = whole.make_kv(190, 10)
    tokens = torch.tensor([(index * 7) % 256 for index in range(1900)])
    output = whole.forward(tokens, [Chunk(0, 1900, table, wants_logits=True)], expected)
    assert output.logits is not None
    assert int(output.logits[0].argmax()) == received.first.first.token
    got = kv.export_tokens(table, 0, 1900).view(torch.float32)
    want = expected.export_tokens(table, 0, 1900).view(torch.float32)
    assert torch.allclose(got, want, atol=1e-4)
    engine.audit()


def test_who_gives_up_an_earlier_offer_leaves_the_next_request_of_that_id_alone(
    engine: PrefillEngine,
) -> None:
    engine.submit(request("again", 40)).result(10)
    earlier = engine.offer("again")
    engine.withdraw(earlier)
    engine.audit()
    future = engine.submit(request("again", 400))
    engine.withdraw(earlier)
    assert future.result(10).request_id == "again"
    engine.withdraw(engine.offer("again"))
    engine.audit()


def pull_at_once(
    engine: PrefillEngine, stage: StageModel, prompts: dict[str, list[int]], given_up: str = ""
) -> dict[str, tuple[torch.Tensor, int]]:
    """What decode workers get of prompts that come at once, pulled from the start, and how much of each was reused.

    ``given_up``: one that nobody pulls, as its owner leaves.
    """
    server = BootstrapServer("127.0.0.1", 0, on_cancel=engine.withdraw)
    received: dict[str, tuple[torch.Tensor, int]] = {}

    async def pull(room: int, name: str, prompt: list[int]) -> None:
        blocks = -(-len(prompt) // 10)
        kv, table = stage.make_kv(blocks, 10), torch.arange(blocks)
        future = await admitted(engine, PrefillRequest.of(name, prompt, handoff=True))
        server.register(room, engine.offer(name))
        if name == given_up:
            engine.abort(name)
            with pytest.raises(RequestAborted):
                await future
            return

        async def allocate(offer: Offer) -> torch.Tensor:
            return table

        receiver = KVReceiver(kv, 6, torch.float32, engine.info.model_id, "127.0.0.1")
        pulling = asyncio.ensure_future(receiver.receive(room_of(server, room), allocate, 30.0))
        result = await future
        server.finish(room, FirstToken(first=result.first, reused_tokens=result.reused_tokens))
        await pulling
        received[name] = kv.export_tokens(table, 0, len(prompt)), result.reused_tokens

    async def burst() -> None:
        await asyncio.gather(*(pull(room, *each) for room, each in enumerate(prompts.items())))

    try:
        asyncio.run(burst())
        engine.audit()
    finally:
        server.close()
    return received


def assert_written(stage: StageModel, prompt: list[int], received: torch.Tensor) -> None:
    """It is what computing the prompt leaves."""
    blocks = -(-len(prompt) // 10)
    expected, table = stage.make_kv(blocks, 10), torch.arange(blocks)
    stage.forward(torch.tensor(prompt), [Chunk(0, len(prompt), table, wants_logits=True)], expected)
    want = expected.export_tokens(table, 0, len(prompt)).view(torch.float32)
    assert torch.allclose(received.view(torch.float32), want, atol=1e-4)


@pytest.mark.parametrize("given_up", [False, True])
def test_who_reads_what_another_is_computing_hands_off_what_is_written(
    engine: PrefillEngine, tiny_llama: Path, given_up: bool
) -> None:
    """A burst of one cold prefix; its writer may have lost its owner and its receiver."""
    prefix = [(index * 11 + 3 + given_up) % 256 for index in range(500)]
    prompts = {f"reader-{number}-{given_up}": [*prefix, *[number + 1] * 40] for number in range(4)}
    stage = load_stage(tiny_llama, range(6), torch.float32, "cpu")
    received = pull_at_once(engine, stage, prompts, "reader-0-True")
    for number, (name, (got, reused)) in enumerate(sorted(received.items())):
        assert_written(stage, prompts[name], got)
        # If the first is let go of before anybody waits for it, the second computes the prefix.
        assert number <= given_up or reused >= 480


def test_who_shares_its_writers_wave_hands_off_what_is_written(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several do at once, where what is not written is no number."""
    monkeypatch.setattr(rank_processes, "RANK_MODULE", poisoning_rank.MODULE)
    rides = tmp_path / "rides"
    rides.touch()
    monkeypatch.setenv(poisoning_rank.RIDES, str(rides))
    stage = load_stage(tiny_llama, range(6), torch.float32, "cpu")
    config = EngineConfig(
        model=tiny_llama,
        dtype="float32",
        pp=2,
        max_num_batched_tokens=1024,
        kv_tokens=16_384,
        max_model_len=1100,
        handoff="socket",
        handoff_timeout=30,
    )
    with PrefillEngine(config) as engine:
        for turn in range(4):
            busy = {f"busy-{turn}-{at}": [turn, at, *[7] * 1000] for at in range(3)}
            prefix = [(index * 11 + turn) % 251 for index in range(480)]
            readers = {f"reader-{turn}-{at}": [*prefix, *[at + 1] * 40] for at in range(6)}
            received = pull_at_once(engine, stage, busy | readers)
            for name in readers:
                assert_written(stage, readers[name], received[name][0])
    assert rides.stat().st_size


def test_tenants_do_not_read_what_another_is_computing(engine: PrefillEngine) -> None:
    prompt = [(index * 13 + 5) % 256 for index in range(600)]
    futures = [
        engine.submit(PrefillRequest.of(f"tenant-{number}", prompt, salt=salt))
        for number, salt in enumerate(("", "a", "a", "b"))
    ]
    reused = [future.result(60).reused_tokens for future in futures]
    assert [each > 500 for each in reused] == [False, False, True, False]
    engine.audit()


def test_offers_need_a_live_request_that_asked_for_one(engine: PrefillEngine) -> None:
    with pytest.raises(HandoffError, match="not live"):
        engine.offer("nobody")


def test_who_waits_in_a_lane_is_not_timed_out_under_a_receiver_that_asks(tiny_llama: Path) -> None:
    """Idle ranks take the blocks of admitted requests early: most of these wait for several limits' time."""
    count, tokens, limit = 8, 1200, 0.4
    kv = load_stage(tiny_llama, range(6), torch.float32, "cpu").make_kv(count * 60, 20)
    config = EngineConfig(
        model=tiny_llama,
        dtype="float32",
        pp=2,
        max_num_batched_tokens=16,
        kv_tokens=16_000,
        max_model_len=2000,
        handoff="socket",
        handoff_timeout=limit,
    )
    server = BootstrapServer("127.0.0.1", 0, on_cancel=lambda _: None)
    with PrefillEngine(config) as engine:
        receiver = KVReceiver(kv, 6, torch.float32, engine.info.model_id, "127.0.0.1")

        async def one(room: int) -> float:
            began = time.monotonic()
            prompt = [(index * 7 + room) % 256 for index in range(tokens)]
            future = await admitted(engine, PrefillRequest.of(f"r{room}", prompt, handoff=True))
            server.register(room, engine.offer(f"r{room}"))

            async def allocate(offer: Offer) -> torch.Tensor:
                return torch.arange(room * 60, room * 60 + 60)

            pulling = asyncio.ensure_future(receiver.receive(room_of(server, room), allocate, 90.0))
            result = await future
            server.finish(room, FirstToken(first=result.first, reused_tokens=result.reused_tokens))
            assert (await pulling).bytes_received == tokens * kv.bytes_per_token
            return time.monotonic() - began

        async def all_of_them() -> list[float | BaseException]:
            return await asyncio.gather(*(one(room) for room in range(count)), return_exceptions=True)

        try:
            ended = asyncio.run(asyncio.wait_for(all_of_them(), 100))
            assert [each for each in ended if isinstance(each, BaseException)] == []
            assert max(each for each in ended if isinstance(each, float)) > 2 * limit, "nobody waited long"
            engine.audit()
        finally:
            receiver.close()
            server.close()


def test_a_traced_prefill_tells_when_it_got_how_far_and_how_its_hand_off_ended(engine: PrefillEngine) -> None:
    """All ranks of a host share one clock."""
    ended: list[HandedOff] = []
    told = threading.Event()

    def handed_off(each: HandedOff) -> None:
        ended.append(each)
        told.set()

    engine._events._on_handed_off = handed_off
    try:
        begun = time.monotonic()
        wanted = msgspec.structs.replace(request("traced", 90), traced=True)
        result = engine.submit(wanted).result(30)
        engine.abort("traced")
        assert told.wait(30)
    finally:
        engine._events._on_handed_off = None
    trace = result.trace
    assert trace is not None
    moments = (begun, trace.arrived, trace.discovered, trace.selected, trace.admitted)
    assert list(moments) == sorted(moments)
    assert trace.attempts == 1
    chunks = [(wave.start, wave.start + wave.length) for wave in trace.waves]
    assert [start for start, _ in chunks] == [result.reused_tokens, *(end for _, end in chunks[:-1])]
    assert chunks[-1][1] == 90
    for wave in trace.waves:
        times = (trace.admitted, *wave.begun, wave.ended, trace.answered)
        assert list(times) == sorted(times)
        assert len(wave.begun) == len(wave.compute) == 3
    (each,) = ended
    assert (each.request_id, each.outcome, each.answered) == ("traced", "withdrawn", trace.answered)
    assert {rank.rank for rank in each.ranks} == {0, 1, 2}
    assert engine.submit(request("untraced", 90)).result(30).trace is None
    engine.abort("untraced")
    engine.audit()


def test_a_cache_that_is_cleared_between_the_pulls_of_two_ranks_is_told_as_what_both_still_have(
    tiny_llama: Path,
) -> None:
    """S64: the rank that still waits for its puller keeps blocks that the other forgets; nobody is promised them."""
    believed: set[int] = set()

    def on_index(delta: IndexDelta) -> None:
        believed.update(delta.stored)
        believed.difference_update(delta.removed)

    config = EngineConfig(
        model=tiny_llama,
        dtype="float32",
        pp=2,
        block_size=16,
        max_model_len=2048,
        kv_tokens=2048,
        handoff="socket",
    )
    with PrefillEngine(config, on_index=on_index) as engine:
        kv = load_stage(tiny_llama, range(6), torch.float32, "cpu").make_kv(8, 16)

        async def pull(*ranks: int) -> None:
            table: asyncio.Future[torch.Tensor] = asyncio.get_running_loop().create_future()
            table.set_result(torch.arange(8))
            puller, offer = Puller(kv, "127.0.0.1"), engine.offer("slow")
            for rank in ranks:
                await puller.pull(offer, offer.ranks[rank], table, time.monotonic() + 30)
            await asyncio.to_thread(puller.close)

        engine.submit(request("slow", 100)).result(30)
        assert len(believed) == 6
        asyncio.run(pull(1))
        deadline = time.monotonic() + 10
        while engine.clear()["ranks"][1]["held"]:
            assert time.monotonic() < deadline, "rank 1 holds what has been pulled from it"
        asyncio.run(pull(0))
        books = engine.audit()
        assert [rank["reusable"] for rank in books["ranks"]] == [6, 0]
        assert books["on_all_ranks"] == len(believed) == 0
        assert engine.prefill(range(100)).reused_tokens == 0
        again = engine.submit(PrefillRequest.of("again", [(index * 7) % 256 for index in range(100)])).result(
            30
        )
        assert again.reused_tokens == 0
        books = engine.audit()
        assert [rank["reusable"] for rank in books["ranks"]] == [12, 12]
        assert books["on_all_ranks"] == len(believed) == 12
