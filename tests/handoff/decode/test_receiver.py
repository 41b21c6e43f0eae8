"""What a decode worker refuses, and that it says so to the prefill worker too."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import torch
from wavepp_worker.errors import HandoffError, HandoffMismatch
from wavepp_worker.handoff.claim_messages import FROM_CLAIMANT, CancelClaim, ClaimRoom, Offered
from wavepp_worker.handoff.connection.channel import Channel, PeerLost, PeerSilent
from wavepp_worker.handoff.connection.listener import Listener
from wavepp_worker.handoff.decode.receiver import CLAIM_ATTEMPTS
from wavepp_worker.handoff.offer import BootstrapAddress, Offer, RankAddress
from wavepp_worker.handoff.prefill import bootstrap_server
from wavepp_worker.handoff.pull_messages import FROM_PULLER, CancelPull
from wavepp_worker.model.kv.paged_kv import TorchPagedKV

from tests.support.handoff_sides import FIRST, HOST, MODEL, SECRET, FakeKV, room_of
from tests.support.kept_tensors import kept


def changed(offer: Offer, rank: int, **values: Any) -> Offer:
    ranks = list(offer.ranks)
    ranks[rank] = msgspec.structs.replace(ranks[rank], **values)
    return msgspec.structs.replace(offer, ranks=tuple(ranks))


CASES = {
    "model": (
        lambda o: msgspec.structs.replace(o, model_id="other"),
        r"serves model other, this .* tiny-model",
    ),
    "dtype": (lambda o: changed(o, 1, dtype="bfloat16"), r"rank 1 offers KV in bfloat16, .* holds float32"),
    "gap": (lambda o: changed(o, 0, layers=(0, 1)), r"layers 0 to 0, 2 to 4; layers 0 to 4 are needed"),
    "overlap": (lambda o: changed(o, 1, layers=(1, 5)), r"layers 0 to 1, 1 to 4; layers 0 to 4 are needed"),
    "short": (lambda o: changed(o, 1, layers=(2, 4)), r"layers 0 to 4 are needed, each exactly once"),
    "too many": (lambda o: changed(o, 1, layers=(2, 6)), r"layers 0 to 4 are needed, each exactly once"),
    "empty": (lambda o: changed(o, 1, layers=(2, 2)), r"layers 0 to 4 are needed"),
    "none": (lambda o: msgspec.structs.replace(o, ranks=()), r"layers 0 to 4 are needed"),
    "width": (lambda o: changed(o, 1, bytes_per_token=1), r"bytes per token, this decode worker's KV takes"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_offer_that_does_not_fit_is_refused_and_cancelled(
    prefill: Any, decode: Any, until: Any, case: str
) -> None:
    worker, target = prefill("socket", parts=((0, 2), (2, 5)), blocks=(4, 4)), decode()
    change, sentence = CASES[case]

    async def run() -> None:
        worker.server.register(1, change(worker.offer("a", 20)))
        with pytest.raises(HandoffMismatch, match=sentence):
            await target.receive(worker, 1)
        await until(lambda: worker.cancelled == ["a"])
        await until(lambda: worker.how("a") == ["withdrawn"] * 2)

    asyncio.run(run())
    assert target.used == 0


def test_nixl_missing_on_the_decode_side(prefill: Any, decode: Any, until: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("wavepp_worker.handoff.decode.receiver.nixl_installed", lambda: False)
    worker, target = prefill("socket"), decode()

    async def run() -> None:
        worker.server.register(1, changed(worker.offer("a", 20), 0, transport="nixl"))
        with pytest.raises(
            HandoffError,
            match=r"over NIXL, which is not installed here; .* pip install --no-deps nixl nixl-cu12",
        ):
            await target.receive(worker, 1)
        await until(lambda: worker.cancelled == ["a"])

    asyncio.run(run())


def test_what_allocate_raises_is_passed_on_and_cancels(prefill: Any, decode: Any, until: Any) -> None:
    worker, target = prefill("socket"), decode()

    async def full(offer: Offer) -> torch.Tensor:
        raise KeyError(offer.request_id)

    async def small(offer: Offer) -> torch.Tensor:
        return torch.arange(6)

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 20))
        with pytest.raises(KeyError):
            await target.receive(worker, 1, allocate=full)
        worker.server.register(2, worker.offer("b", 20))
        with pytest.raises(HandoffError, match="b got 6 blocks of 3 tokens for a prompt of 20"):
            await target.receive(worker, 2, allocate=small)
        await until(lambda: worker.cancelled == ["a", "b"])

    asyncio.run(run())


def test_a_prefill_that_fails_while_room_is_awaited(prefill: Any, decode: Any, until: Any) -> None:
    worker, target = prefill("socket"), decode()

    async def never(offer: Offer) -> torch.Tensor:
        worker.server.fail(1, "rank 0 died")
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 20))
        with pytest.raises(HandoffError, match=r"^rank 0 died$"):
            await target.receive(worker, 1, allocate=never)

    asyncio.run(run())


def test_an_unknown_room_and_a_second_receiver(
    prefill: Any, decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap_server, "UNKNOWN_ROOM_SECONDS", 0.2)
    worker, target = prefill("socket"), decode()

    async def run() -> None:
        with pytest.raises(HandoffError, match=r"no prefill for room 77 reached this worker within 0\.2 s"):
            await target.receive(worker, 77)
        worker.server.register(1, worker.offer("a", 20))
        first = asyncio.ensure_future(target.receive(worker, 1))
        await asyncio.sleep(0.1)
        with pytest.raises(HandoffError, match="room 1 is claimed by another decode worker already"):
            await target.receive(worker, 1)
        worker.compute("a", 0, 20)
        worker.server.finish(1, FIRST)
        await first

    asyncio.run(run())
    assert worker.cancelled == []


def test_nobody_at_the_address(decode: Any) -> None:
    target = decode()
    at = BootstrapAddress(host=HOST, port=1, room=5, secret=SECRET)

    async def run() -> None:
        with pytest.raises(HandoffError, match=r"cannot connect from 127.0.0.1 to 127.0.0.1:1\b"):
            await target.receiver.receive(at, target.allocate, 5.0)

    asyncio.run(run())


async def received(worker: Any, target: Any, lost: tuple[type[Exception], str] | None) -> None:
    """A prompt that is computed arrives, or is ``lost`` with that error, whose message matches."""
    worker.server.register(1, worker.offer("a", 20))
    worker.compute("a", 0, 20)
    worker.server.finish(1, FIRST)
    if lost is None:
        assert (await target.receive(worker, 1)).first == FIRST
    else:
        with pytest.raises(lost[0], match=lost[1]):
            await target.receive(worker, 1)


@pytest.mark.parametrize(("silent", "arrives"), [(CLAIM_ATTEMPTS - 1, True), (CLAIM_ATTEMPTS, False)])
def test_a_prefill_worker_that_does_not_answer_at_once_is_asked_again(
    prefill: Any, decode: Any, monkeypatch: Any, silent: int, arrives: bool
) -> None:
    """As on a machine on which nobody ran for some seconds."""
    worker, target = prefill("socket"), decode()
    connect, left = Channel.connect, [None] * silent

    async def connect_late(*words: Any) -> Channel:
        if left:
            left.pop()
            raise PeerSilent("no answer within 5.0 s")
        return await connect(*words)

    monkeypatch.setattr(Channel, "connect", connect_late)

    asyncio.run(received(worker, target, None if arrives else (PeerSilent, "no answer within")))


@pytest.mark.parametrize(("closed", "arrives"), [(CLAIM_ATTEMPTS - 1, True), (CLAIM_ATTEMPTS, False)])
def test_a_claim_whose_connection_is_closed_before_any_answer_is_made_again(
    prefill: Any, decode: Any, monkeypatch: pytest.MonkeyPatch, closed: int, arrives: bool
) -> None:
    """As of one that had to make room for others before it was heard."""
    worker, target = prefill("socket"), decode()
    receive_hello, left = Channel.receive_hello, [None] * closed

    async def not_heard(self: Channel, *words: Any) -> Any:
        if left:
            left.pop()
            return None
        return await receive_hello(self, *words)

    monkeypatch.setattr(Channel, "receive_hello", not_heard)

    asyncio.run(received(worker, target, None if arrives else (PeerLost, "")))


def test_a_claim_that_was_answered_is_not_made_again(decode: Any) -> None:
    claims: list[object] = []

    async def offers_and_leaves(channel: Channel) -> None:
        claims.append(await channel.receive(FROM_CLAIMANT))
        await channel.send(Offered(room=8, offer=offer))

    target, server = decode(), Listener(HOST, 0, "bootstrap")
    rank = RankAddress(
        rank=0,
        host=HOST,
        port=1,
        layers=(0, 5),
        block_size=4,
        dtype="float32",
        bytes_per_token=target.kv.bytes_per_token,
        transport="socket",
    )
    offer = Offer(request_id="a", secret=SECRET, prompt_tokens=9, model_id=MODEL, ranks=(rank,))
    server.start(offers_and_leaves)
    at = BootstrapAddress(host=HOST, port=server.port, room=8, secret=SECRET)
    try:
        with pytest.raises(PeerLost, match="closed the connection"):
            asyncio.run(target.receiver.receive(at, target.allocate, 9.0))
    finally:
        server.close(2.0)
    assert len(claims) == 1


def test_a_broken_connection_to_a_rank_is_tried_again(
    prefill: Any, decode: Any, until: Any, monkeypatch: Any
) -> None:
    worker, target = prefill("socket"), decode()
    receive_into, broken = Channel.receive_into, []

    async def breaks_once(self: Channel, view: memoryview) -> None:
        if len(view) > 4096 and not broken:
            broken.append(self.peer)
            raise PeerLost("the cable was pulled")
        await receive_into(self, view)

    monkeypatch.setattr(Channel, "receive_into", breaks_once)

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 60))
        worker.compute("a", 0, 60)
        worker.server.finish(1, FIRST)
        got = await target.receive(worker, 1)
        assert broken
        moments = got.moments
        assert moments.began <= moments.offered <= moments.prefilled <= moments.ended
        assert got.bytes_received == 60 * target.kv.bytes_per_token
        assert target.kv.wrong(target.tables["a"], 0, 60, 1) == 0

    asyncio.run(run())
    assert worker.how("a") == ["received"]


def test_cancelling_says_so_on_every_connection(decode: Any, until: Any) -> None:
    """A closed connection alone would let a rank hold the KV for one that may come back."""
    target, said = decode(), []

    async def rank(channel: Channel) -> None:
        said.append(await channel.receive(FROM_PULLER))
        said.append(await channel.receive(FROM_PULLER))

    async def bootstrap(channel: Channel) -> None:
        said.append(await channel.receive(FROM_CLAIMANT))
        await channel.send(Offered(room=8, offer=offer))
        said.append(await channel.receive(FROM_CLAIMANT))

    ranks, server = [Listener(HOST, 0, f"rank {index}") for index in range(2)], Listener(HOST, 0, "bootstrap")
    addresses = [
        RankAddress(
            rank=index,
            host=HOST,
            port=listener.port,
            layers=layers,
            block_size=4,
            dtype="float32",
            bytes_per_token=FakeKV(range(*layers), 1, 1).bytes_per_token,
            transport="socket",
        )
        for index, (listener, layers) in enumerate(zip(ranks, [(0, 2), (2, 5)], strict=True))
    ]
    offer = Offer(request_id="a", secret=SECRET, prompt_tokens=9, model_id=MODEL, ranks=tuple(addresses))
    for listener in ranks:
        listener.start(rank)
    server.start(bootstrap)

    at = BootstrapAddress(host=HOST, port=server.port, room=8, secret=SECRET)

    async def run() -> None:
        receiving = asyncio.ensure_future(target.receiver.receive(at, target.allocate, 9.0))
        await until(lambda: len(said) == 3)
        assert said[0] == ClaimRoom(room=8, secret=SECRET, wait=9.0)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await until(lambda: len(said) == 6)
        assert said[3:5] == [CancelPull(request_id="a")] * 2
        assert said[5] == CancelClaim(room=8)

    asyncio.run(run())
    for listener in (*ranks, server):
        listener.close(2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_real_paged_kv(transport: str, until: Any, dtype: torch.dtype) -> None:
    """The torch pools of the stages: other blocks on each side, keys and values of other shapes."""
    from wavepp_worker.handoff.decode.receiver import KVReceiver
    from wavepp_worker.handoff.prefill.bootstrap_server import BootstrapServer
    from wavepp_worker.handoff.transport import make_source

    shape, cpu = kept((2, 8), (2, 6)), torch.device("cpu")
    ranks = [TorchPagedKV(r, [shape] * len(r), 30, 8, dtype, cpu) for r in (range(0, 2), range(2, 3))]
    target = TorchPagedKV(range(3), [shape] * 3, 50, 5, dtype, cpu)
    for kv in ranks:
        for layer in kv.layers:
            for pool in kv.pools(layer):
                pool.normal_()
    settled: list[str] = []
    server = BootstrapServer("127.0.0.1", on_cancel=print)
    sources = [
        make_source(
            transport,
            rank=rank,
            host="127.0.0.1",
            kv=kv,
            dtype=dtype,
            timeout=10.0,
            on_settled=lambda name, how: settled.append(how),
        )
        for rank, kv in enumerate(ranks)
    ]
    receiver = KVReceiver(target, 3, dtype, "m", "127.0.0.1")
    tables = [torch.randperm(30)[:13] for _ in ranks]
    own = torch.randperm(50)[:21]

    async def allocate(offer: Offer) -> torch.Tensor:
        return own

    async def run() -> None:
        for source, table in zip(sources, tables, strict=True):
            source.expect("a", SECRET)
            source.offer("a", table, 101, 101)
        addresses = tuple(source.address for source in sources)
        server.register(
            1, Offer(request_id="a", secret=SECRET, prompt_tokens=101, model_id="m", ranks=addresses)
        )
        server.finish(1, FIRST)
        got = await receiver.receive(room_of(server, 1), allocate, 10.0)
        assert got.bytes_received == 101 * 3 * 28 * dtype.itemsize
        await until(lambda: settled == ["received"] * 2)

    try:
        asyncio.run(run())
        whole = torch.cat([kv.export_tokens(t, 0, 101) for kv, t in zip(ranks, tables, strict=True)])
        assert torch.equal(target.export_tokens(own, 0, 101), whole)
    finally:
        for source in sources:
            source.close()
        server.close()
        receiver.close()
