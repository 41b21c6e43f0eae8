from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from wavepp_worker.decode.batch import Batch, blocks_needed
from wavepp_worker.errors import AuditError

CAPACITY = 20
LIMIT = 4


class BatchMachine(RuleBasedStateMachine):
    """Random arrivals, starts, growth, preemptions and releases against a model: a sorted queue and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = Batch(CAPACITY, LIMIT)
        self.queue: list[tuple[str, int]] = []
        self.held: dict[str, list[int]] = {}
        self.running: list[str] = []
        self.count = 0
        self.priorities: dict[str, int] = {}

    @rule(blocks=st.integers(1, CAPACITY), priority=st.integers(-1, 1))
    def arrive(self, blocks: int, priority: int) -> None:
        request_id = f"r{self.count}"
        self.count += 1
        self.batch.ask(request_id, blocks, priority)
        self.priorities[request_id] = priority
        self.queue.append((request_id, blocks))
        self.sort_queue()
        self.admit()

    def sort_queue(self) -> None:
        self.queue.sort(key=lambda each: self.place(each[0]))

    def place(self, request_id: str) -> tuple[int, int]:
        return -self.priorities[request_id], int(request_id[1:])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), blocks=st.integers(1, 3))
    def grow(self, data: st.DataObject, blocks: int) -> None:
        request_id = data.draw(st.sampled_from(self.running))
        if blocks > self.batch.free:
            with pytest.raises(ValueError, match=f"cannot get {blocks} blocks of {self.batch.free}"):
                self.batch.grow(request_id, blocks)
            return
        self.held[request_id] += self.batch.grow(request_id, blocks)
        assert self.batch.held(request_id) == len(self.held[request_id])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keep=st.integers(1, 5))
    def shrink(self, data: st.DataObject, keep: int) -> None:
        request_id = data.draw(st.sampled_from(self.running))
        self.batch.shrink(request_id, keep)
        del self.held[request_id][keep:]

    @precondition(lambda self: self.running)
    @rule(blocks=st.integers(1, CAPACITY))
    def preempt(self, blocks: int) -> None:
        request_id = self.batch.running_in_order[-1]
        assert request_id == max(self.running, key=self.place)
        self.batch.preempt(request_id, blocks)
        del self.held[request_id]
        self.running.remove(request_id)
        self.queue.append((request_id, blocks))
        self.sort_queue()

    @precondition(lambda self: set(self.held) - set(self.running))
    @rule(data=st.data())
    def kv_arrives(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(set(self.held) - set(self.running))))
        self.batch.start(request_id)
        self.running.append(request_id)

    @precondition(lambda self: self.queue or self.held)
    @rule(data=st.data(), times=st.integers(1, 2))
    def leave(self, data: st.DataObject, times: int) -> None:
        """Finish, fail or abort, in any state, more than once."""
        known = [request_id for request_id, _ in self.queue] + list(self.held)
        request_id = data.draw(st.sampled_from(known))
        for _ in range(times):
            self.batch.release(request_id)
        self.queue = [(waiting, blocks) for waiting, blocks in self.queue if waiting != request_id]
        self.held.pop(request_id, None)
        self.running = [other for other in self.running if other != request_id]
        self.admit()

    def admit(self) -> None:
        free = CAPACITY - sum(map(len, self.held.values())) - len(self.running)
        expected = []
        while self.queue and len(self.held) + len(expected) < LIMIT and self.queue[0][1] <= free:
            free -= self.queue[0][1]
            expected.append(self.queue.pop(0))
        admitted = self.batch.admit()
        assert [(request_id, len(blocks)) for request_id, blocks in admitted] == expected
        self.held.update(admitted)

    @invariant()
    def books_agree(self) -> None:
        self.batch.check()
        owned = [block for blocks in self.held.values() for block in blocks]
        assert len(set(owned)) == len(owned) == CAPACITY - self.batch.free
        assert self.batch.waiting == tuple(request_id for request_id, _ in self.queue)
        assert self.batch.holding == tuple(self.held)
        assert self.batch.running == tuple(self.running)

    def teardown(self) -> None:
        for request_id in [request_id for request_id, _ in self.queue] + list(self.held):
            self.batch.release(request_id)
        self.batch.check()
        assert self.batch.free == CAPACITY
        assert not self.batch.waiting + self.batch.holding + self.batch.running


TestBatch = BatchMachine.TestCase


def test_head_of_the_queue_is_not_overtaken() -> None:
    batch = Batch(10, 8)
    batch.ask("first", 6)
    batch.ask("large", 6)
    batch.ask("small", 1)
    assert [request_id for request_id, _ in batch.admit()] == ["first"]
    assert batch.admit() == []
    batch.release("first")
    assert [request_id for request_id, _ in batch.admit()] == ["large", "small"]


def test_an_aborted_head_lets_the_next_one_in() -> None:
    batch = Batch(10, 8)
    batch.ask("first", 6)
    batch.admit()
    batch.ask("large", 6)
    batch.ask("small", 4)
    batch.release("large")
    assert [request_id for request_id, _ in batch.admit()] == ["small"]


@pytest.mark.parametrize("blocks", [0, 11])
def test_what_never_fits_is_refused(blocks: int) -> None:
    with pytest.raises(ValueError, match="pool of 10"):
        Batch(10, 8).ask("r", blocks)


def test_misuse_is_refused() -> None:
    batch = Batch(10, 8)
    batch.ask("r", 1)
    with pytest.raises(ValueError, match="twice"):
        batch.ask("r", 1)
    with pytest.raises(ValueError, match="cannot start"):
        batch.start("r")
    batch.admit()
    batch.start("r")
    with pytest.raises(ValueError, match="cannot start"):
        batch.start("r")
    with pytest.raises(ValueError, match="cannot be preempted for 11 blocks"):
        batch.preempt("r", 11)
    batch.preempt("r", 1)
    with pytest.raises(ValueError, match="or does not run"):
        batch.preempt("r", 1)
    with pytest.raises(ValueError, match="or does not run"):
        batch.grow("r", 1)
    with pytest.raises(ValueError, match="cannot keep 1 blocks, or does not run"):
        batch.shrink("r", 1)


def test_check_sees_a_leak() -> None:
    batch = Batch(10, 8)
    batch.ask("r", 3)
    batch.admit()
    del batch._held["r"]
    with pytest.raises(AuditError, match="hold 0 blocks"):
        batch.check()


def test_each_that_holds_blocks_has_a_state_of_its_own() -> None:
    batch = Batch(10, 3)
    for name in "abc":
        batch.ask(name, 1)
    batch.admit()
    assert {batch.state(name) for name in "abc"} == {0, 1, 2}
    freed = batch.state("b")
    batch.release("b")
    batch.ask("d", 1)
    batch.admit()
    assert batch.state("d") == freed
    batch.check()
    del batch._state_of["d"]
    with pytest.raises(AuditError, match="3 requests hold blocks and 2 a state"):
        batch.check()


@given(prompt=st.integers(1, 500), new=st.integers(1, 500), block=st.integers(1, 33))
def test_blocks_hold_every_position_that_is_run(prompt: int, new: int, block: int) -> None:
    last_position = prompt + new - 2
    assert blocks_needed(prompt, new, block) == last_position // block + 1
