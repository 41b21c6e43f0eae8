from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.block_keys import KEY_BYTES
from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import AuditError
from wavepp_worker.model.kv.layer_cache import CachedTensor, LayerCache
from wavepp_worker.model.kv.paged_kv import TorchPagedKV
from wavepp_worker.model.kv.state_memory import StateMemory
from wavepp_worker.model.stage import BlockMemory
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.tiers import tier_store
from wavepp_worker.runtime.tiers.copy_stream import CopyStream
from wavepp_worker.runtime.tiers.disk_tier import DiskTier
from wavepp_worker.runtime.tiers.tier_store import BlocksLost, TierStore, WindowTiers, open_tiers

from tests.support.cache_bench import key
from tests.support.kept_tensors import kept

SHAPES = [kept((2, 3), (2, 3)), kept((1, 5), (1, 2))]
SIZES = {Tier.DEVICE: 6, Tier.HOST: 5, Tier.DISK: 4}
WINDOWS = 2
Place = tuple[int, Tier, int]

places = st.integers(0, WINDOWS - 1).flatmap(
    lambda window: st.permutations(list(Tier)).flatmap(
        lambda order: st.tuples(
            st.just(window),
            st.tuples(st.just(order[0]), st.integers(0, SIZES[order[0]] - 1)),
            st.tuples(st.just(order[1]), st.integers(0, SIZES[order[1]] - 1)),
        )
    )
)


def kv_memory(dtype: torch.dtype = torch.float32) -> TorchPagedKV:
    return TorchPagedKV(range(3, 5), SHAPES, SIZES[Tier.DEVICE], 4, dtype, torch.device("cpu"))


class Bench:
    """A tier store whose device blocks start with contents of their own, and where each content is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memories = [kv_memory(), kv_memory(torch.bfloat16)]
        self.store = self.open()
        generator = torch.Generator().manual_seed(0)
        self.contents: dict[Place, bytes] = {}
        for window, memory in enumerate(self.memories):
            shape = (memory.num_blocks, memory.block_bytes)
            # Of floats, not of bytes: a NaN does not survive every copy.
            payload = torch.randn(shape[0], shape[1] // memory.dtype.itemsize, generator=generator)
            memory.import_blocks(torch.arange(shape[0]), payload.to(memory.dtype).view(torch.uint8))
            for slot in range(shape[0]):
                self.contents[window, Tier.DEVICE, slot] = self.device_bytes(window, slot)

    def open(self) -> TierStore:
        return TierStore(
            [
                WindowTiers(
                    memory,
                    SIZES[Tier.HOST],
                    DiskTier(self.folder / f"{window}", SIZES[Tier.DISK], memory.block_bytes, "test"),
                )
                for window, memory in enumerate(self.memories)
            ]
        )

    def device_bytes(self, window: int, slot: int) -> bytes:
        """Found token by token, another way than whole blocks are copied."""
        memory = self.memories[window]
        tokens = slot * memory.block_size, (slot + 1) * memory.block_size
        return memory.export_tokens(torch.arange(memory.num_blocks), *tokens).numpy().tobytes()

    def read(self, place: Place) -> bytes:
        window, tier, slot = place
        if tier == Tier.DEVICE:
            return self.device_bytes(window, slot)
        spare = (Tier.DEVICE, 0)
        self.store.run([move(window, self.contents[place], (tier, slot), spare)])
        return self.device_bytes(window, 0)

    def verify(self) -> None:
        """Device blocks first, as reading other tier_store goes through one of them."""
        for place in sorted(self.contents, key=lambda place: place[1]):
            assert self.read(place) == self.contents[place], place
        self.store.check()


def move(window: int, content: bytes, source: tuple[Tier, int], target: tuple[Tier, int]) -> Move:
    return Move(window, content[:KEY_BYTES], None, source, target)


@contextmanager
def bench() -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp())
    try:
        made = Bench(folder)
        yield made
        made.store.close()
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("staging", [1, 400, tier_store.STAGING_BYTES])
def test_any_chain_of_moves_keeps_every_byte(monkeypatch: pytest.MonkeyPatch, staging: int) -> None:
    monkeypatch.setattr(tier_store, "STAGING_BYTES", staging)

    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.lists(places, max_size=25), max_size=4), st.booleans())
    def check(lists: list[list[tuple[int, tuple[Tier, int], tuple[Tier, int]]]], restart: bool) -> None:
        with bench() as made:
            for wanted in lists:
                moves = []
                for window, source, target in wanted:
                    content = made.contents.get((window, *source))
                    if content is not None:
                        moves.append(move(window, content, source, target))
                        made.contents[(window, *target)] = content
                made.store.run(moves)
            if restart:
                made.store.close()
                made.store = made.open()
                made.contents = {p: c for p, c in made.contents.items() if p[1] != Tier.HOST}
            made.verify()

    check()


def test_a_slot_is_reused_within_a_list() -> None:
    with bench() as made:
        a, b, c = (made.contents[0, Tier.DEVICE, slot] for slot in range(3))
        device, host, disk = ((lambda slot, tier=tier: (tier, slot)) for tier in Tier)
        made.store.run(
            [
                move(0, a, device(0), host(0)),
                move(0, b, device(1), host(0)),
                move(0, b, host(0), disk(3)),
                move(0, c, device(2), host(0)),
                move(0, b, disk(3), device(2)),
                move(0, c, host(0), device(1)),
            ]
        )
        assert [made.device_bytes(0, slot) for slot in range(3)] == [a, c, b]


def test_neighbours_of_one_direction_are_copied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as made:
        gathered = []
        export = made.memories[0].export_blocks

        def counted(blocks: torch.Tensor) -> torch.Tensor:
            gathered.append(blocks.tolist())
            return export(blocks)

        monkeypatch.setattr(made.memories[0], "export_blocks", counted)
        order = [4, 1, 2, 0]
        made.store.run(
            [
                move(0, made.contents[0, Tier.DEVICE, slot], (Tier.DEVICE, slot), (Tier.HOST, at))
                for at, slot in enumerate(order)
            ]
        )
        assert gathered == [order]


def test_one_copy_never_writes_a_block_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU would write the two in any order."""
    with bench() as made:
        a, b = (made.contents[0, Tier.DEVICE, slot] for slot in range(2))
        made.store.run([move(0, x, (Tier.DEVICE, slot), (Tier.HOST, slot)) for slot, x in enumerate((a, b))])
        scattered = []
        scatter = made.memories[0].import_blocks

        def counted(blocks: torch.Tensor, payload: torch.Tensor) -> None:
            scattered.append(blocks.tolist())
            scatter(blocks, payload)

        monkeypatch.setattr(made.memories[0], "import_blocks", counted)
        made.store.run([move(0, x, (Tier.HOST, slot), (Tier.DEVICE, 5)) for slot, x in enumerate((a, b))])
        assert scattered == [[5], [5]]
        assert made.device_bytes(0, 5) == b


class NotedStream(CopyStream):
    """What is asked of the stream of copies."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__(torch.device("cpu"))
        self._calls = calls

    def touch_blocks(self) -> None:
        self._calls.append("after the waves")

    def wait(self, runs: int | None = None) -> None:
        self._calls.append("wait" if runs is None else f"wait for run {runs}")


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ((Tier.DEVICE, Tier.HOST), ["after the waves", "export"]),
        ((Tier.DEVICE, Tier.DISK), ["after the waves", "export", "wait"]),
        ((Tier.HOST, Tier.DEVICE), ["after the waves", "import"]),
        ((Tier.DISK, Tier.DEVICE), ["after the waves", "import"]),
        ((Tier.HOST, Tier.DISK), ["wait for run 0"]),
        ((Tier.DISK, Tier.HOST), ["wait for run 0"]),
    ],
)
def test_blocks_are_touched_after_the_waves_before_and_host_memory_after_the_copies(
    monkeypatch: pytest.MonkeyPatch, chain: tuple[Tier, Tier], expected: list[str]
) -> None:
    source, target = chain
    with bench() as made:
        content, calls = made.contents[0, Tier.DEVICE, 1], []
        if source != Tier.DEVICE:
            made.store.run([move(0, content, (Tier.DEVICE, 1), (source, 0))])
        if source == Tier.DISK:
            assert not made.store.prefetch("r", [Copy(0, content[:KEY_BYTES], Tier.DISK, 0)])
        for name in ("export", "import"):
            called = getattr(made.memories[0], f"{name}_blocks")

            def noted(*given: torch.Tensor, name: str = name, called: Any = called) -> Any:
                calls.append(name)
                return called(*given)

            monkeypatch.setattr(made.memories[0], f"{name}_blocks", noted)
        made.store._stream = NotedStream(calls)
        made.store.run([move(0, content, (source, 0 if source != Tier.DEVICE else 1), (target, 2))])
        assert calls == expected
        assert made.store._stream.runs == 1
        made.store.run([])
        assert made.store._stream.runs == 1, "nothing was to be copied"


class Beside(CopyStream):
    """As on a GPU, whose copies may still be under way."""

    beside = True

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.waited: list[int | None] = []

    def wait(self, runs: int | None = None) -> None:
        self.waited.append(runs)


def test_who_touches_blocks_learns_which_run_touched_them_last() -> None:
    with bench() as made:
        store, stream = made.store, Beside()
        store._stream = stream
        contents = [made.contents[0, Tier.DEVICE, slot] for slot in range(4)]
        store.run([move(0, contents[1], (Tier.DEVICE, 1), (Tier.HOST, 2))])
        store.run([move(0, contents[3], (Tier.DEVICE, 3), (Tier.HOST, 0))])
        store.run([move(0, contents[1], (Tier.HOST, 2), (Tier.DEVICE, 0))])
        assert [store.last_run(0, blocks) for blocks in ([1], [3], [1, 3], [0, -1], [2, 4], [-1], [])] == [
            1,
            2,
            2,
            3,
            0,
            0,
            0,
        ]
        assert store.last_run(1, [0, 1, 3]) == 0, "the other window"
        assert not stream.waited
        store.run([move(0, contents[3], (Tier.HOST, 0), (Tier.DISK, 0))])
        store.run(
            [
                move(0, contents[2], (Tier.DEVICE, 2), (Tier.HOST, 1)),
                move(0, contents[2], (Tier.HOST, 1), (Tier.DISK, 1)),
            ]
        )
        assert stream.waited == [4, 5], (
            "the run that is under way itself, of which all that was queued counts"
        )


def test_from_disk_no_more_is_page_locked_at_once_than_some_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_store, "STAGING_BYTES", 1)
    with bench() as made:
        contents = [made.contents[0, Tier.DEVICE, slot] for slot in range(4)]
        monkeypatch.setattr(tier_store, "PINNED_BYTES", made.memories[0].block_bytes)
        made.store.run(
            [move(0, each, (Tier.DEVICE, at), (Tier.DISK, at)) for at, each in enumerate(contents)]
        )
        assert not made.store.prefetch(
            "r", [Copy(0, c[:KEY_BYTES], Tier.DISK, at) for at, c in enumerate(contents)]
        )
        made.store._stream = stream = Beside()
        made.store.run(
            [move(0, each, (Tier.DISK, at), (Tier.DEVICE, at)) for at, each in enumerate(contents)]
        )
        assert stream.waited == [None, None]


def corrupt(made: Bench, content: bytes) -> None:
    path = made.folder / "0"
    whole = path.read_bytes()
    assert whole.count(content) == 1
    with path.open("r+b") as file:
        file.seek(whole.index(content))
        file.write(b"torn")


@pytest.mark.parametrize("through_host", [False, True])
def test_a_corrupt_block_loses_itself_and_nothing_else(through_host: bool) -> None:
    with bench() as made:
        a, b, c = (made.contents[0, Tier.DEVICE, slot] for slot in range(3))
        spill = [move(0, x, (Tier.DEVICE, slot), (Tier.DISK, slot)) for slot, x in enumerate((a, b))]
        made.store.run(spill)
        corrupt(made, a)
        if through_host:
            load = [move(0, x, (Tier.DISK, slot), (Tier.HOST, slot)) for slot, x in enumerate((a, b))]
            load += [move(0, x, (Tier.HOST, slot), (Tier.DEVICE, slot + 3)) for slot, x in enumerate((a, b))]
        else:
            load = [move(0, x, (Tier.DISK, slot), (Tier.DEVICE, slot + 3)) for slot, x in enumerate((a, b))]
        offload = move(0, c, (Tier.DEVICE, 2), (Tier.HOST, 4))
        with pytest.raises(BlocksLost, match=rf"{1 + through_host} blocks could not be copied") as caught:
            made.store.run([*load, offload])
        assert caught.value.moves == tuple(load[::2])
        assert made.device_bytes(0, 4) == b
        assert made.device_bytes(0, 3) == made.contents[0, Tier.DEVICE, 3]
        made.store.run([move(0, c, (Tier.HOST, 4), (Tier.DEVICE, 0))])
        assert made.device_bytes(0, 0) == c
        made.store.check()


def test_what_was_staged_is_not_lost_whatever_the_disk_does() -> None:
    with bench() as made:
        a, b = (made.contents[0, Tier.DEVICE, slot] for slot in range(2))
        spill = [move(0, x, (Tier.DEVICE, slot), (Tier.DISK, slot)) for slot, x in enumerate((a, b))]
        assert made.store.run(spill) == []
        on_disk = [Copy(0, each.key, *each.target) for each in spill]
        assert made.store.prefetch("r", on_disk) == []
        os.truncate(made.folder / "0", 0)
        load = [move(0, x, (Tier.DISK, slot), (Tier.DEVICE, slot + 3)) for slot, x in enumerate((a, b))]
        assert made.store.run(load) == []
        assert [made.device_bytes(0, slot) for slot in (3, 4)] == [a, b]
        assert made.store.switched_off() == []
        assert made.store.prefetch("s", on_disk) == on_disk, "used up"
        assert made.store.switched_off() == [0]
        c = made.contents[1, Tier.DEVICE, 0]
        other = move(1, c, (Tier.DEVICE, 0), (Tier.DISK, 3))
        assert made.store.run([*spill, other]) == on_disk, "the other window has its disk"
        made.store.check()


def test_a_lost_target_that_is_written_again_is_not_lost() -> None:
    with bench() as made:
        a, b = (made.contents[0, Tier.DEVICE, slot] for slot in range(2))
        made.store.run([move(0, a, (Tier.DEVICE, 0), (Tier.DISK, 0))])
        corrupt(made, a)
        with pytest.raises(AuditError):
            made.store.check()
        made.store.run(
            [
                move(0, a, (Tier.DISK, 0), (Tier.HOST, 1)),
                move(0, b, (Tier.DEVICE, 1), (Tier.HOST, 1)),
                move(0, b, (Tier.HOST, 1), (Tier.DEVICE, 5)),
            ]
        )
        assert made.device_bytes(0, 5) == b


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((Tier.DEVICE, 6), (Tier.HOST, 0)),
        ((Tier.DEVICE, 0), (Tier.HOST, 5)),
        ((Tier.HOST, -1), (Tier.DEVICE, 0)),
        ((Tier.DEVICE, 0), (Tier.DISK, 4)),
        ((Tier.DEVICE, 0), (Tier.DEVICE, 1)),
    ],
)
def test_moves_that_make_no_sense_copy_nothing(source: tuple[Tier, int], target: tuple[Tier, int]) -> None:
    with bench() as made:
        good = move(0, b"", (Tier.DEVICE, 1), (Tier.DISK, 0))
        with pytest.raises(ValueError, match=r"slot|tier"):
            made.store.run([good, Move(0, key(1), None, source, target)])
        assert made.store.restore(0) == []


def test_tiers_that_are_not_there() -> None:
    store = TierStore([WindowTiers(kv_memory())])
    assert store.restore(0) == []
    for tier in (Tier.HOST, Tier.DISK):
        with pytest.raises(ValueError, match=r"has 0 there"):
            store.run([Move(0, key(1), None, (Tier.DEVICE, 0), (tier, 0))])
    store.close()


def rank_config(disk_path: Path, **changes: object) -> RankConfig:
    """Of a rank that is never started, so addresses and limits do not matter."""
    fields: dict[str, object] = {
        name: {"int": 0, "str": "", "float": 0.0}.get(str(kind), ())
        for name, kind in RankConfig.__annotations__.items()
    }
    fields |= {
        "rank": 1,
        "ranks": 2,
        "model_id": "tiny",
        "layers": (3, 5),
        "dtype": "float32",
        "kv_dtype": "auto",
        "block_size": 4,
        "key_secret_id": "a",
    }
    fields["disk_path"] = str(disk_path)
    return RankConfig(**(fields | changes))  # type: ignore[arg-type]


def windows(disk_blocks: int = 3) -> list[tuple[WindowSpec, BlockMemory]]:
    """Of attention, and of recurrent layers."""
    state = LayerCache("test", "recurrent", (CachedTensor("state", (3, 4), "float32"),))
    states = StateMemory({3: state}, 4, torch.float32, torch.device("cpu"))
    return [
        (WindowSpec("attention", "full", 6, host_blocks=2, disk_blocks=disk_blocks), kv_memory()),
        (WindowSpec("states", "recurrent", 4, host_blocks=1, disk_blocks=2), states),
    ]


def test_the_tiers_of_a_rank(tmp_path: Path) -> None:
    store = open_tiers(rank_config(tmp_path), windows())
    store.run(
        [
            Move(0, key(7), None, (Tier.DEVICE, 0), (Tier.HOST, 1)),
            Move(0, key(7), None, (Tier.HOST, 1), (Tier.DISK, 2)),
            Move(0, key(8), key(7), (Tier.DEVICE, 1), (Tier.DISK, 0)),
            Move(1, key(8), None, (Tier.DEVICE, 3), (Tier.DISK, 1)),
        ]
    )
    store.close()
    store.close()
    store = open_tiers(rank_config(tmp_path), windows())
    assert [(block.key, block.parent, block.slot) for block in store.restore(0)] == [
        (key(7), None, 2),
        (key(8), key(7), 0),
    ]
    assert [(block.key, block.parent, block.slot) for block in store.restore(1)] == [(key(8), None, 1)]
    store.close()
    for change in (
        {"model_id": "other"},
        {"dtype": "float16"},
        {"kv_dtype": "fp8"},
        {"kv_dtype": "fp8", "dtype": "float16"},
        {"layers": (4, 6)},
        {"ranks": 3},
        {"key_secret_id": "b"},
    ):
        changed = open_tiers(rank_config(tmp_path, **change), windows())
        assert changed.restore(0) == []
        changed.run([Move(0, key(7), None, (Tier.DEVICE, 0), (Tier.DISK, 2))])
        changed.close()
    assert open_tiers(rank_config(tmp_path), windows(disk_blocks=0)).restore(0) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_blocks_and_tokens_are_the_same_memory(dtype: torch.dtype) -> None:
    source, target = kv_memory(dtype), kv_memory(dtype)
    table = torch.tensor([5, 0, 2])
    tokens = torch.randn(source.bytes_per_token * 12 // dtype.itemsize).to(dtype).view(torch.uint8)
    source.import_tokens(table, 0, 12, source.layers, tokens)
    moved = torch.tensor([1, 3, 4])
    target.import_blocks(moved, source.export_blocks(table))
    assert target.export_tokens(moved, 0, 12).equal(tokens)
    assert not target.export_blocks(torch.tensor([0, 2, 5])).any()
