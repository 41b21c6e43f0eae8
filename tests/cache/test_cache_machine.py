"""Random traffic on one rank's cache against a naive model that recounts everything and knows every byte."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from wavepp_worker.cache.moves import Copy, Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.results import Prepared
from wavepp_worker.cache.window_spec import WindowSpec

from tests.support.cache_bench import BLOCK, CacheBench, Prompt, keys_of

TOKENS = st.builds(
    lambda base, shared, tail: ([base] * shared + tail) or [base],
    st.integers(0, 2),
    st.integers(0, 13),
    st.lists(st.integers(0, 1), max_size=3),
)


def windows(draw_blocks: int, kinds: str, host: int, disk: int) -> list[WindowSpec]:
    """Tiny windows, so that prefixes collide and every tier is under pressure."""
    made = {
        "f": WindowSpec("full", "full", draw_blocks, host, disk),
        "s": WindowSpec("sliding", "sliding", draw_blocks, host, disk, span=3),
        "w": WindowSpec("rolling", "sliding", draw_blocks, host, disk, span=3, wave=3),
        "r": WindowSpec(
            "recurrent", "recurrent", max(2, draw_blocks // 2), host, disk, interval=4, max_snapshots=2
        ),
        "n": WindowSpec("stateless", "recurrent", max(2, draw_blocks // 3)),
    }
    return [made[kind] for kind in kinds]


class CacheMachine(RuleBasedStateMachine):
    """Requests over two tokens in any state of ownership, through every method in any order."""

    @initialize(
        blocks=st.integers(7, 14),
        kinds=st.sampled_from(["f", "f", "fs", "fr", "sr", "fsr", "r", "rf", "w", "fw", "fwr"]),
        host=st.sampled_from([0, 1, 4, 9]),
        disk=st.sampled_from([0, 1, 5]),
    )
    def start(self, blocks: int, kinds: str, host: int, disk: int) -> None:
        self.bench = CacheBench(*windows(blocks, kinds, host, disk))
        self.names = 0
        self.reported: dict[int, int | None] = {}
        self.tiers: dict[bytes, Tier] = {}

    def _name(self) -> str:
        self.names += 1
        return f"r{self.names}"

    def _any(self, *states: str) -> list[str]:
        return sorted(name for name in self.bench.prompts if self.bench.cache.holds(name) in states)

    def _pick(self, data: st.DataObject, *states: str) -> str:
        return data.draw(st.sampled_from(self._any(*states)))

    def _everything_kept(self) -> bool:
        return all(spec.kind == "full" for spec in self.bench.specs)

    def _ready(self, *states: str) -> list[str]:
        """Those that wait for no other's blocks."""
        return [name for name in self._any(*states) if self.bench.cache.ready(name)]

    def _over(self, *states: str) -> list[str]:
        """Those that may go: nobody waits for their blocks."""
        return [name for name in self._any(*states) if not self.bench.reservation(name).readers]

    @rule(tokens=TOKENS)
    def run(self, tokens: list[int]) -> None:
        """A request from its preparation to its release, which fills the tree and evicts from it."""
        name = self._name()
        if self.bench.prepare(name, tokens) is not None:
            self.bench.materialise(name)
            self.bench.compute(name)
            self.bench.release(name)

    @rule(tokens=TOKENS, candidate=st.integers(0, 14))
    def lease(self, tokens: list[int], candidate: int) -> None:
        self.bench.lease(self._name(), tokens, candidate)

    @rule(tokens=TOKENS, headroom=st.sampled_from([0, 0, 1, 3]))
    def prepare(self, tokens: list[int], headroom: int) -> None:
        bench, name = self.bench, self._name()
        prepared = bench.prepare(name, tokens, headroom=headroom)
        if prepared is None:
            assert bench.cache.holds(name) == "nothing"
            assert any(
                bench.available(window) - bench.escrowed(window) - headroom < len(tokens)
                for window in range(len(bench.specs))
            ), "refused although free room alone suffices"
        else:
            assert bench.cache.holds(name) == ("committed" if prepared.committed else "escrow")

    @rule(
        base=st.integers(0, 9),
        length=st.integers(4, 14),
        begun=st.sampled_from([0, 0, 0, 3, 4]),
        readers=st.lists(st.tuples(st.integers(2, 14), st.integers(1, 3)), min_size=1, max_size=3),
        chained=st.booleans(),
    )
    def burst(
        self, base: int, length: int, begun: int, readers: list[tuple[int, int]], chained: bool
    ) -> None:
        """Requests that share what the first of them, or each the one before, has yet to compute."""
        bench, writer = self.bench, self._name()
        prepared = bench.prepare(writer, [base] * length)
        if prepared is None or not prepared.committed:
            return
        if begun > prepared.endpoint:
            bench.materialise(writer)
            bench.compute(writer, min(begun, length))
        for shared, tail in readers:
            name = self._name()
            self._prepare_behind(name, writer, shared, tail)
            if chained and bench.cache.holds(name) == "committed":
                writer = name

    def _prepare_behind(self, name: str, writer: str, shared: int, tail: int) -> None:
        """Up to a block that the other may not have computed: it waits for that, and only for that."""
        bench = self.bench
        first = bench.prompts[writer]
        tokens = [*first.tokens[:shared], *[self.names] * tail]
        keys = keys_of(tokens)
        common = sum(one == other for one, other in zip(keys, first.keys, strict=False))
        limit = min(common, (len(tokens) - 1) // BLOCK)
        usable = bench.brute_endpoint(keys, limit)
        expected = max(usable, bench.brute_ahead(writer, limit))
        prepared = bench.cache.prepare(name, keys, len(tokens), limit * BLOCK, writer=writer)
        if prepared is None:
            return
        bench.prompts[name] = Prompt(tokens, keys)
        if any(spec.wave for spec in bench.specs):
            # Who waits for blocks that are to be the writer's room again takes room by that.
            assert prepared.endpoint in (usable * BLOCK, expected * BLOCK)
        else:
            assert prepared.endpoint == expected * BLOCK
        if all(spec.kind == "full" for spec in bench.specs):
            assert prepared == Prepared(limit * BLOCK, True), "a writer computes every block"
        if not bench.cache.ready(name):
            assert prepared.endpoint > bench.reservation(writer).computed
            with pytest.raises(ValueError, match="waits for blocks"):
                bench.cache.materialise(name)

    @precondition(lambda self: self._any("lease"))
    @rule(data=st.data(), headroom=st.sampled_from([0, 0, 2]))
    def reserve(self, data: st.DataObject, headroom: int) -> None:
        name, bench = self._pick(data, "lease"), self.bench
        rooms = [
            bench.available(at)
            - bench.escrowed(at)
            - (0 if spec.kind == "recurrent" or spec.wave else headroom)
            for at, spec in enumerate(bench.specs)
        ]
        fits = all(bench.demand(at, name) <= room for at, room in enumerate(rooms))
        assert bench.cache.reserve(name, headroom) == fits
        assert bench.cache.holds(name) == ("escrow" if fits else "lease")

    @precondition(lambda self: self._any("lease", "escrow", "committed"))
    @rule(data=st.data(), endpoint=st.integers(0, 7))
    def commit(self, data: st.DataObject, endpoint: int) -> None:
        name, bench = self._pick(data, "lease", "escrow", "committed"), self.bench
        if not bench.cache.ready(name):
            prepared = bench.cache.commit(name, endpoint * BLOCK)
            assert prepared.endpoint <= endpoint * BLOCK
            if prepared.committed or prepared.endpoint < endpoint * BLOCK:
                assert bench.reservation(name).end * BLOCK == prepared.endpoint
            return
        before = self._ownership(name)
        was = bench.cache.holds(name)
        end = bench.reservation(name).end
        # What it holds it keeps, whatever became of it in the tree.
        usable = end == endpoint or (
            end > endpoint
            and all(
                bench.prompts[name].keys[at] in bench.tree(window).nodes
                for window in range(len(bench.specs))
                for at in bench._needed(window, endpoint)
            )
        )
        fits = usable and bench.fits_at(name, endpoint)
        prepared = bench.cache.commit(name, endpoint * BLOCK)
        assert prepared.committed == fits
        assert prepared.endpoint <= endpoint * BLOCK
        rooms = [
            bench.available(at) - bench.escrowed(at, but=name, committed_only=True)
            for at in range(len(bench.specs))
        ]
        if prepared.committed:
            assert prepared.endpoint == endpoint * BLOCK
            assert bench.cache.holds(name) == "committed"
            for at, room in enumerate(rooms):
                assert bench.ledger(at).get(name).blocks == bench.demand(at, name) <= room
        elif prepared.endpoint == endpoint * BLOCK:
            assert self._ownership(name) == before, "a commit that failed changed something"
        else:
            assert bench.reservation(name).end * BLOCK == prepared.endpoint
            assert bench.cache.holds(name) == (
                was if before[0] == bench.reservation(name).end else {"committed": "escrow"}.get(was, was)
            )

    def _ownership(self, name: str) -> tuple[object, ...]:
        reservation = self.bench.reservation(name)
        shares = [(share.first, [node.key for node in share.pinned]) for share in reservation.shares]
        escrows = [self.bench.ledger(at).get(name) for at in range(len(self.bench.specs))]
        return reservation.end, reservation.state, shares, escrows

    @precondition(lambda self: self._ready("escrow", "committed"))
    @rule(data=st.data())
    def materialise(self, data: st.DataObject) -> None:
        name, bench = data.draw(st.sampled_from(self._ready("escrow", "committed"))), self.bench
        if bench.cache.holds(name) == "escrow" and any(
            bench.demand(at, name) > bench.available(at) - bench.escrowed(at, name, committed_only=True)
            for at in range(len(bench.specs))
        ):
            with pytest.raises(ValueError, match="its room is gone"):
                bench.cache.materialise(name)
            return
        bench.materialise(name)

    @precondition(lambda self: self._any("committed"))
    @rule(data=st.data(), endpoint=st.integers(0, 14))
    def ask(self, data: st.DataObject, endpoint: int) -> None:
        self.bench.cache.ask(self._pick(data, "committed"), endpoint)

    @precondition(lambda self: self._any("sequence"))
    @rule(data=st.data(), tokens=st.integers(1, 9))
    def begin(self, data: st.DataObject, tokens: int) -> None:
        """What comes before ``compute`` with the same request takes place while it is being computed."""
        name = self._pick(data, "sequence")
        prompt = self.bench.prompts[name]
        if prompt.chunk is None:
            end = min(self.bench.reach(name), prompt.position + tokens)
            if end > prompt.position:
                self.bench.begin(name, end)

    @precondition(lambda self: self._any("sequence"))
    @rule(data=st.data(), tokens=st.integers(1, 9))
    def compute(self, data: st.DataObject, tokens: int) -> None:
        name = self._pick(data, "sequence")
        prompt = self.bench.prompts[name]
        self.bench.compute(name, min(len(prompt.tokens), prompt.position + tokens))

    @precondition(lambda self: self._any("sequence") and self._everything_kept())
    @rule(data=st.data(), tokens=st.integers(1, 9))
    def compute_with_riders(self, data: st.DataObject, tokens: int) -> None:
        """Who waits for a chunk runs in the very wave that computes it."""
        name = self._pick(data, "sequence")
        prompt = self.bench.prompts[name]
        end = min(len(prompt.tokens), prompt.position + tokens)
        if prompt.chunk is None and end > prompt.position:
            self.bench.compute_with_riders(name, end)

    @precondition(lambda self: self._over("lease", "escrow", "committed", "sequence"))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._over("lease", "escrow", "committed", "sequence")))
        assert self.bench.release(name)
        assert not self.bench.release(name)

    @precondition(lambda self: self.bench.prompts)
    @rule()
    def release_all(self) -> None:
        for name in reversed(list(self.bench.prompts)):
            self.bench.release(name)
        self.bench.cache.audit()

    @rule()
    def clear(self) -> None:
        """What nobody holds is forgotten at once, what somebody holds is where it was."""
        trees = [self.bench.tree(at) for at in range(len(self.bench.specs))]
        held = [
            {node.key: (node.tier, node.slot) for node in tree.nodes.values() if node.pins} for tree in trees
        ]
        before = len(trees[0].nodes) if trees else 0
        cleared = self.bench.cache.clear()
        assert [{node.key: (node.tier, node.slot) for node in tree.nodes.values()} for tree in trees] == held
        if trees:
            assert (cleared.held, sum(cleared.forgotten)) == (len(held[0]), before - len(held[0]))

    @rule()
    def flush(self) -> None:
        self.bench.execute(self.bench.cache.flush())

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Some bytes turn out to be bad: who holds the block has to go, and it is never found again."""
        bench = self.bench
        window = data.draw(st.integers(0, len(bench.specs) - 1))
        nodes = sorted(bench.tree(window).nodes.values(), key=lambda node: node.key)
        if not nodes:
            return
        node = data.draw(st.sampled_from(nodes))
        holders = [
            name
            for name in bench.cache._reservations
            if any(not below_or_at(node).isdisjoint(share.pinned) for share in bench.reservation(name).shares)
        ]
        copy = Copy(window, node.key, node.tier, node.slot)
        assert sorted(bench.cache.lose([copy])) == sorted(holders)
        assert node.key not in bench.tree(window).nodes
        bench.cache.check()
        # A block in use is lost by the disk only, from which nobody reads who runs: writers go on.
        for name in holders:
            if bench.cache.holds(name) != "sequence":
                self._let_go(name)

    def _let_go(self, name: str) -> None:
        for reader in list(self.bench.reservation(name).readers):
            self._let_go(reader)
        self.bench.prompts.pop(name)
        self.bench.cache.release(name)

    @rule(tokens=TOKENS)
    def hint(self, tokens: list[int]) -> None:
        """With nobody changing the tree, the hint is what a walk without a limit on claims finds."""
        bench, name = self.bench, "hint"
        if any(bench.escrowed(at) or spec.wave for at, spec in enumerate(bench.specs)):
            return
        end = bench.lease(name, tokens)
        assert bench.cache.hint(bench.prompts[name].keys, len(tokens)) == end
        bench.release(name)
        assert bench.cache.match(keys_of(tokens), len(tokens)) == end

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "bench"):
            self.bench.verify()
            self._take_changes()

    def _take_changes(self) -> None:
        stored, removed, moved = self.bench.cache.take_changes()
        for key in removed:
            assert key not in self.reported.values(), "a block was removed before its child"
            del self.reported[key], self.tiers[key]
        for block in stored:
            assert block.key not in self.reported
            assert block.parent is None or block.parent in self.reported, "stored before its parent"
            self.reported[block.key] = block.parent
            self.tiers[block.key] = block.tier
        for key, tier in moved:
            assert self.tiers[key] != tier, "it was there already"
            self.tiers[key] = tier
        assert self.tiers == {key: node.tier for key, node in self.bench.tree().nodes.items()}
        assert self.reported.keys() == self.bench.tree().nodes.keys()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.release_all()


def below_or_at(node: Node) -> set[Node]:
    return {node}.union(*(below_or_at(child) for child in node.children))


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
