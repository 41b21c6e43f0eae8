"""A rank's cache with fake bytes: each block's content is known, freed ones are poisoned, moves executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from wavepp_worker import token_ids
from wavepp_worker.block_keys import KEY_BYTES, SECRET_BYTES, BlockKeyMaker, BlockKeys
from wavepp_worker.cache.moves import Move, Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.reservations import Reservation
from wavepp_worker.cache.results import Begun, Materialised, Prepared
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.cache.windows.recurrent import RecurrentWindow

BLOCK = 2
MAKER = BlockKeyMaker(bytes(SECRET_BYTES), "model", BLOCK)


def attention(blocks: int, host: int = 0, disk: int = 0) -> WindowSpec:
    return WindowSpec("attention", "full", blocks, host, disk)


def recurrent(blocks: int, host: int = 0, interval: int = 4, most: int | None = None) -> WindowSpec:
    return WindowSpec("recurrent", "recurrent", blocks, host, interval=interval, max_snapshots=most)


def prompt(first: int, tokens: int) -> list[int]:
    """A prompt that shares no block with one of another ``first``."""
    return [first] * tokens


def keys_of(tokens: Sequence[int]) -> list[bytes]:
    return BlockKeys(MAKER.keys(token_ids.pack(tokens)))[:]


def key(number: int) -> bytes:
    """A key by itself, of no prompt; the low bits of the number are in its first byte."""
    return number.to_bytes(KEY_BYTES, "little")


@dataclass
class Prompt:
    """A request that holds something; ``claimed`` once it is materialised, computed up to ``position``.

    Attributes:
        chunk: where the chunk ends that has begun beyond ``position``, and what it leaves behind; None without one.
    """

    tokens: Sequence[int]
    keys: list[bytes]
    claimed: Materialised | None = None
    position: int = 0
    chunk: tuple[int, Begun] | None = None


class CacheBench:
    """Drives one ``RankCache`` and checks every byte it hands out.

    ``bytes`` maps ``(window, tier, slot)`` to the key whose content is there; no entry is poison.
    """

    def __init__(self, *specs: WindowSpec) -> None:
        self.cache = RankCache(specs, BLOCK)
        self.specs = specs
        self.bytes: dict[tuple[int, Tier, int], object] = {}
        self.prompts: dict[str, Prompt] = {}

    def tree(self, window: int = 0):
        return self.cache._windows[window].tree

    def ledger(self, window: int = 0):
        return self.cache._windows[window].ledger

    def places(self, tokens: Sequence[int], window: int = 0) -> list[Tier | None]:
        """The tier of each block of a prompt, None where it is not attached."""
        nodes = self.tree(window).nodes
        return [nodes[key].tier if key in nodes else None for key in keys_of(tokens)]

    def reservation(self, name: str) -> Reservation:
        found = self.cache._reservations.get(name)
        assert found is not None
        return found

    def lease(self, name: str, tokens: Sequence[int], candidate: int | None = None) -> int:
        keys = keys_of(tokens)
        limit = min(len(tokens) if candidate is None else candidate, len(tokens) - 1) // BLOCK
        expected = self.brute_endpoint(keys, limit)
        end = self.cache.lease(name, keys, len(tokens), len(tokens) if candidate is None else candidate)
        assert end == expected * BLOCK, f"leased {end} tokens, the naive model says {expected * BLOCK}"
        self.prompts[name] = Prompt(tokens, keys)
        return end

    def prepare(
        self, name: str, tokens: Sequence[int], candidate: int | None = None, headroom: int = 0
    ) -> Prepared | None:
        keys = keys_of(tokens)
        wanted = self.cache.match(keys, len(tokens)) if candidate is None else candidate
        prepared = self.cache.prepare(name, keys, len(tokens), wanted, headroom)
        if prepared is not None:
            self.prompts[name] = Prompt(tokens, keys)
        return prepared

    def materialise(self, name: str) -> Materialised:
        """Materialise, execute the moves, and read everything the request resumes from."""
        claimed = self._claim(name)
        self.verify()
        return claimed

    def _claim(self, name: str) -> Materialised:
        prompt = self.prompts[name]
        reservation = self.reservation(name)
        end = reservation.end
        claimed = self.cache.materialise(name)
        self.execute(claimed.moves)
        prompt.claimed, prompt.position = claimed, end * BLOCK
        for window, spec in enumerate(self.specs):
            if spec.kind == "recurrent":
                resume = claimed.resume[window]
                assert (resume is None) == (end == 0)
                if resume is not None:
                    assert self.bytes[window, Tier.DEVICE, resume] == prompt.keys[end - 1]
                self.bytes[window, Tier.DEVICE, claimed.states[window]] = (name, prompt.position)
                assert resume != claimed.states[window]
            else:
                table = claimed.tables[window]
                assert len(table) == -(-len(prompt.tokens) // BLOCK)
                real = [block for block in table if block >= 0]
                assert len(set(real)) == len(real)
        return claimed

    def begin(self, name: str, end: int) -> Begun:
        """What a chunk up to ``end`` leaves behind, in blocks that nobody else has."""
        prompt = self.prompts[name]
        begun, claimed = self.cache.begin(name, end), prompt.claimed
        assert claimed is not None
        prompt.chunk = end, begun
        self.execute(begun.moves)
        for window, snapshots in enumerate(begun.snapshots):
            own = [*snapshots.values(), claimed.states[window]]
            assert len({*own, claimed.resume[window]}) == len(own) + 1 or not snapshots
        self.verify()
        return begun

    def compute(self, name: str, end: int | None = None) -> None:
        """Compute up to ``end``, reading what attention reads, writing what it writes; publish it.

        If a chunk has begun already, then no further than that. In several chunks, if one cannot have as many blocks;
        less, if none can, as others that have begun have them.
        """
        prompt = self.prompts[name]
        end = len(prompt.tokens) if end is None else end
        if prompt.chunk is not None:
            return self._compute(name)
        while prompt.position < end and (reach := self.reach(name)) > prompt.position:
            self.begin(name, min(end, reach))
            self._compute(name)
        return None

    def compute_with_riders(self, name: str, end: int) -> list[str]:
        """One wave of a chunk up to ``end``, and of the first chunk of each who waits for no more; who these are.

        For attention to everything alone.
        """
        self.begin(name, end)
        self.cache.publish_ahead(name, end)
        waited = [reader for reader in self.reservation(name).readers if self.cache.ready(reader)]
        assert not waited, "who is ready waits for nobody"
        riders = [
            other
            for other, prompt in self.prompts.items()
            if prompt.claimed is None and self.cache.ready(other) and self.cache.holds(other) == "committed"
        ]
        for rider in riders:
            self._claim(rider)
        self._compute(name)
        for rider in riders:
            self.compute(rider, self.prompts[rider].position + 1)
        return riders

    def _compute(self, name: str) -> None:
        prompt = self.prompts[name]
        claimed, start = prompt.claimed, prompt.position
        assert claimed is not None
        assert prompt.chunk is not None
        (end, begun), prompt.chunk = prompt.chunk, None
        for window, spec in enumerate(self.specs):
            if spec.kind == "recurrent":
                assert self.bytes[window, Tier.DEVICE, claimed.states[window]] == (name, start)
                self.bytes[window, Tier.DEVICE, claimed.states[window]] = (name, end)
                for position, slot in begun.snapshots[window].items():
                    assert start < position <= end
                    self.bytes[window, Tier.DEVICE, slot] = prompt.keys[position // BLOCK - 1]
                continue
            for at in range(start // BLOCK, -(-end // BLOCK)):
                done = (at + 1) * BLOCK <= end
                self.bytes[window, Tier.DEVICE, claimed.tables[window][at]] = (
                    prompt.keys[at] if done else (name, at)
                )
        prompt.position = end
        self.cache.publish(name, end)
        self.verify()

    def release(self, name: str) -> bool:
        self.prompts.pop(name, None)
        released = self.cache.release(name)
        self.verify()
        return released

    def run(self, name: str, tokens: Sequence[int]) -> Materialised:
        """A whole request, from preparation to release."""
        assert self.prepare(name, tokens) is not None, f"no room for {name}"
        claimed = self.materialise(name)
        self.compute(name)
        self.release(name)
        return claimed

    def execute(self, moves: Sequence[Move]) -> None:
        for move in moves:
            content = self.bytes.get((move.window, *move.source))
            assert content == move.key, f"{move} would copy {content}"
            self.bytes[(move.window, *move.target)] = content

    def verify(self) -> None:
        """Poison what is free; every attached block and every running request must read its own content."""
        self.cache.check()
        for number, window in enumerate(self.cache._windows):
            for tier, pool in zip(Tier, window.tree.pools, strict=True):
                for slot in set(range(pool.capacity)) - set(pool.in_use()):
                    self.bytes.pop((number, tier, slot), None)
            for node in window.tree.nodes.values():
                assert self.bytes.get((number, node.tier, node.slot)) == node.key
                if node.disk_copy >= 0:
                    assert self.bytes.get((number, Tier.DISK, node.disk_copy)) == node.key
        for name, prompt in self.prompts.items():
            if prompt.claimed is not None:
                self._verify_running(name, prompt, prompt.claimed)

    def _verify_running(self, name: str, prompt: Prompt, claimed: Materialised) -> None:
        full = prompt.position // BLOCK
        for window, spec in enumerate(self.specs):
            if spec.kind == "recurrent":
                assert self.bytes.get((window, Tier.DEVICE, claimed.states[window])) == (
                    name,
                    prompt.position,
                )
                continue
            table = claimed.tables[window]
            for at in self.cache._windows[window].needed(full):
                assert self.bytes.get((window, Tier.DEVICE, table[at])) == prompt.keys[at], (
                    f"{name} reads a wrong block {at} of window {spec.name}"
                )
            if prompt.position % BLOCK:
                assert self.bytes.get((window, Tier.DEVICE, table[full])) == (name, full)

    def available(self, window: int) -> int:
        """Device blocks nobody holds, or counts on as room, or sets aside; counted from who holds what."""
        return self.specs[window].blocks - len(self._held(window)) - self._not_room(window)

    def _not_room(self, window: int, but: str = "", held: Collection[Node] = ()) -> int:
        """Blocks that others hold beside who counts on them as room, and those that are set aside for a wave.

        If ``but`` held just ``held``.
        """
        holders = Counter(held)
        for name, share in self.cache._reservations.shares(window).items():
            if name != but:
                holders.update(share.pinned)
        lent = sum(node.owner is not None and count > 1 for node, count in holders.items())
        return lent + self.cache._windows[window].set_aside

    def reach(self, name: str) -> int:
        """The token up to which a chunk can begin: sliding windows may want their blocks from what is set aside."""
        tokens = len(self.prompts[name].tokens)
        for window, share in enumerate(self.reservation(name).shares):
            if self.specs[window].wave is not None:
                own = self.ledger(window).get(name).blocks
                blocks = share.taken + own + self.cache._windows[window].set_aside
                tokens = min(tokens, BLOCK * blocks)
        return tokens

    def _held(self, window: int, but: str = "") -> set[int]:
        held: set[int] = set()
        for name, share in self.cache._reservations.shares(window).items():
            if name != but:
                held |= share.private
                held |= {node.slot for node in share.pinned if node.tier == Tier.DEVICE}
        return held

    def fits_at(self, name: str, end: int) -> bool:
        """Whether a leased request fits holding exactly what it needs after ``end`` blocks, all present."""
        for window in range(len(self.specs)):
            # What it holds it keeps, also where the tree has lost it.
            nodes_of = {node.key: node for node in self.reservation(name).shares[window].pinned}
            nodes_of |= self.tree(window).nodes
            nodes = [nodes_of[self.prompts[name].keys[at]] for at in self._needed(window, end)]
            on_device = {node.slot for node in nodes if node.tier == Tier.DEVICE}
            room = self.specs[window].blocks - len(self._held(window, but=name) | on_device)
            room -= self._not_room(window, name, nodes)
            room -= self.escrowed(window, but=name, committed_only=True)
            if len(nodes) - len(on_device) + self._own(window, name, end) > room:
                return False
        return True

    def escrowed(self, window: int, but: str = "", committed_only: bool = False) -> int:
        return sum(
            escrow.blocks
            for name, escrow in self.ledger(window)._escrows.items()
            if name != but and (escrow.committed or not committed_only)
        )

    def demand(self, window: int, name: str) -> int:
        """Blocks the request has to allocate at its lease's endpoint, counted block by block."""
        reservation = self.reservation(name)
        onboard = sum(node.tier != Tier.DEVICE for node in reservation.shares[window].pinned)
        return onboard + self._own(window, name, reservation.end)

    def _own(self, window: int, name: str, end: int) -> int:
        tokens, spec = len(self.prompts[name].tokens), self.specs[window]
        if spec.kind != "recurrent":
            blocks = sum(at * BLOCK < tokens for at in range(end, tokens))
            return blocks if spec.wave is None else min(blocks, len(self._needed(window, 10**4)) + 1)
        marks = [
            at for at in range(1, tokens) if spec.interval and at % spec.interval == 0 and at > end * BLOCK
        ]
        most = len(marks) if spec.max_snapshots is None else spec.max_snapshots
        return 1 + min(len(marks), most, spec.blocks - 1 - (end > 0))

    def brute_endpoint(self, keys: Sequence[int], limit: int) -> int:
        """The largest endpoint every window can resume at without touching committed room, by trying all."""
        for end in range(limit, 0, -1):
            if all(self._resumable(window, keys, end) for window in range(len(self.specs))):
                return end
        return 0

    def brute_ahead(self, writer: str, limit: int) -> int:
        """The largest endpoint at which a request can resume from what another will compute, by trying all."""
        if writer not in self.prompts or not limit:
            return 0
        return max(
            end
            for end in range(limit + 1)
            if not end or all(self._will_resume(window, writer, end) for window in range(len(self.specs)))
        )

    def _will_resume(self, window: int, writer: str, end: int) -> bool:
        """Whether a writer leaves a snapshot there, or has yet to begin to compute as far and there is room for it."""
        spec, prompt, reservation = self.specs[window], self.prompts[writer], self.reservation(writer)
        if spec.kind == "sliding":
            # What it has passed, others may have by now; it holds no more of what it resumes from than it sees.
            share = reservation.shares[window]
            return not set(range(max(share.first, share.passed))) & set(self._needed(window, end))
        if spec.kind != "recurrent":
            return True
        share, recurrent = reservation.shares[window], self.cache._windows[window]
        assert isinstance(recurrent, RecurrentWindow)
        if end * BLOCK in recurrent._asked.get(writer, ()):
            return True
        planned = recurrent.snapshot_positions(reservation.end, len(prompt.tokens))
        if end * BLOCK in (share.snapshots if prompt.claimed else planned):
            return True
        begun = prompt.chunk[0] if prompt.chunk else prompt.position
        room = self.available(window) - self.escrowed(window)
        ahead = max(begun, reservation.end * BLOCK) < end * BLOCK
        return spec.interval is not None and ahead and room >= 2

    def _resumable(self, window: int, keys: Sequence[int], end: int) -> bool:
        nodes, needed = self.tree(window).nodes, self._needed(window, end)
        if any(keys[at] not in nodes for at in needed):
            return False
        found = [nodes[keys[at]] for at in needed]
        claims = sum(
            node.tier == Tier.DEVICE and (node.pins == 0 or (node.pins == 1 and node.owner is not None))
            for node in found
        )
        return claims <= self.available(window) - self.escrowed(window, committed_only=True)

    def _needed(self, window: int, end: int) -> list[int]:
        spec = self.specs[window]
        if spec.kind == "full":
            return list(range(end))
        if spec.kind == "recurrent":
            return [end - 1] if end else []
        return [at for at in range(end) if (at + 1) * BLOCK > end * BLOCK - spec.span]
