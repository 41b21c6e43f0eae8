"""Which requests hold what, step by step."""

from __future__ import annotations

from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.reservations import Reservations
from wavepp_worker.cache.results import Prepared
from wavepp_worker.cache.windows.kinds import make_window

from tests.support.cache_bench import BLOCK, CacheBench, attention, keys_of, prompt, recurrent

KEYS = keys_of(prompt(1, 8))


def reservations(blocks: int) -> Reservations:
    return Reservations([make_window(0, attention(blocks), BLOCK, HintIndex())], BLOCK)


def run(held: Reservations, name: str, keys: list[bytes], prompt_tokens: int) -> None:
    assert held.prepare(name, keys, prompt_tokens, 0, 0, 0) == Prepared(0, True)
    held.materialise(name)
    held.publish(name, prompt_tokens)


def test_holders_of_a_block_are_all_requests_whose_prefix_it_is_in() -> None:
    held = reservations(8)
    run(held, "first", KEYS, 8)
    held.lease("whole", KEYS, 9, 4)
    held.lease("half", KEYS, 9, 2)
    assert (list(held), len(held)) == (["first", "whole", "half"], 3)
    blocks = held.shares(0)["whole"].pinned
    assert held.holders(blocks[3:]) == ("first", "whole")
    assert held.holders(blocks[:1]) == ("first", "whole", "half")
    assert held.holders([]) == ()


def test_a_request_is_prepared_at_the_limit_but_committed_at_its_candidate_only() -> None:
    held = reservations(8)
    run(held, "first", KEYS, 8)
    held.release("first")
    assert held.prepare("a", KEYS, 9, 4 * BLOCK, 3, 0) == Prepared(3 * BLOCK, False)
    found = held.get("a")
    assert found is not None
    assert (found.state, found.end) == ("escrow", 3)
    assert held.commit("a", 3 * BLOCK) == Prepared(3 * BLOCK, True)
    assert found.state == "committed"


def test_without_room_a_prepared_request_holds_nothing() -> None:
    held = reservations(4)
    run(held, "first", KEYS, 8)
    assert held.prepare("a", KEYS, 9, 8, 4, 0) is None
    assert held.get("a") is None
    assert held.usable(KEYS, 4) == 4
    held.release("first")
    assert held.prepare("a", KEYS, 9, 8, 4, 0) is None, "its lease takes all the room"
    assert list(held) == []
    assert held.usable(KEYS, 4) == 4


def test_a_lower_lease_takes_the_destination_that_its_snapshot_lies_on() -> None:
    """The only host block holds the earlier snapshot, and is where another request's victim would go."""
    bench = CacheBench(attention(16), recurrent(3, host=1))
    bench.run("a", prompt(1, 11))
    bench.run("pushes the earlier snapshot down", prompt(2, 5))
    assert bench.places(prompt(1, 11), window=1) == [None, Tier.HOST, None, Tier.DEVICE, None]
    assert bench.lease("b", prompt(1, 11)) == 8
    assert bench.prepare("c", prompt(3, 5)).committed
    assert bench.ledger(1).get("c").destinations == 1
    assert bench.cache.commit("b", 6) == Prepared(4, False)
    assert bench.ledger(1).get("c").destinations == 0
    bench.cache.check()
    assert bench.materialise("c").moves == ()
