"""What goes first: what nobody comes back to, where nobody ever does."""

from __future__ import annotations

from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.tree import BlockTree

from tests.support.cache_bench import key

DEVICE = Tier.DEVICE
BLOCKS = 200


class Tree:
    """A prefix tree of one tier, whose requests attach blocks and let go of them at once."""

    def __init__(self) -> None:
        self.books = BlockTree(0, (BLOCKS, 0, 0), HintIndex())
        self._keys = 0

    def compute(self, *path: Node) -> Node:
        """A request reuses a path and goes on with a block of its own, which is returned."""
        books = self.books
        books.pin(path)
        self._keys += 1
        slot = books.pools[DEVICE].take(1)[0]
        last = path[-1] if path else None
        node = books.attach(key(self._keys), last, len(path), DEVICE, slot, held=True)
        books.unpin([*path, node])
        return node

    def evict(self) -> Node:
        node = self.books.victims[DEVICE].take()
        assert node is not None
        self.books.detach(node)
        return node


def questions(tree: Tree, prefix: Node, count: int) -> None:
    """Requests that go on from a prefix; each has to go before the next."""
    for _ in range(count):
        tree.books.detach(tree.compute(prefix))


def test_what_nobody_comes_back_to_goes_before_what_was_used_longer_ago() -> None:
    tree = Tree()
    prefix = tree.compute()
    questions(tree, prefix, 60)
    other = tree.compute()
    last = tree.compute(prefix)
    assert tree.evict() is last
    assert tree.evict() is other


def test_what_others_come_back_to_goes_in_the_order_of_its_use() -> None:
    tree = Tree()
    prefix = tree.compute()
    for _ in range(60):
        turn = tree.compute(prefix)
        then = tree.compute(prefix, turn)
        assert {tree.evict(), tree.evict()} == {turn, then}
    other = tree.compute()
    last = tree.compute(prefix)
    assert [tree.evict(), tree.evict()] == [other, last]


def test_it_goes_later_than_what_was_not_used_for_a_whole_pool() -> None:
    tree = Tree()
    old, prefix = tree.compute(), tree.compute()
    questions(tree, prefix, BLOCKS)
    last = tree.compute(prefix)
    assert [tree.evict(), tree.evict()] == [old, last]


def test_what_is_known_of_one_prefix_does_not_tell_of_another_that_others_come_back_to() -> None:
    tree = Tree()
    documents, chats = tree.compute(), tree.compute()
    turns = [tree.compute(chats) for _ in range(8)]
    for turn in turns:
        tree.compute(chats, turn)
    questions(tree, documents, 60)
    other = tree.compute()
    turn = tree.compute(chats)
    question = tree.compute(documents)
    assert tree.evict() is question
    gone = [tree.evict() for _ in range(17)]
    assert other in gone
    assert turn not in gone


def test_what_an_operator_has_forgotten_tells_nothing() -> None:
    tree = Tree()
    prefix = tree.compute()
    for _ in range(60):
        tree.compute(prefix)
    tree.books.pin([prefix])
    tree.books.clear()
    tree.books.unpin([prefix])
    other = tree.compute()
    tree.compute(prefix)
    assert tree.evict() is other
