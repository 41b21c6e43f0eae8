"""Who waits for whose blocks, and gets them by the step that completes them."""

from __future__ import annotations

import pytest
from wavepp_worker.cache.moves import Copy, Tier
from wavepp_worker.cache.results import Prepared
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import AuditError

from tests.support.cache_bench import CacheBench, Prompt, attention, keys_of, prompt, recurrent

LONG = prompt(1, 12)
SLIDING = WindowSpec("sliding", "sliding", 30, span=3)


def behind(bench: CacheBench, name: str, tokens: list[int], writer: str, candidate: int) -> Prepared | None:
    """Prepare a request at a candidate that its writer is to compute."""
    keys = keys_of(tokens)
    prepared = bench.cache.prepare(name, keys, len(tokens), candidate, writer=writer)
    if prepared is not None:
        bench.prompts[name] = Prompt(tokens, keys)
    return prepared


def test_a_reader_is_ready_with_the_step_that_completes_its_last_block_and_keeps_what_the_writer_lets_go() -> (
    None
):
    bench = CacheBench(attention(16))
    assert bench.prepare("writer", LONG) == Prepared(0, True)
    assert behind(bench, "reader", [*LONG[:8], 5, 5], "writer", 8) == Prepared(8, True)
    assert bench.cache.use().escrowed == 6 + 1, "nothing of the shared prefix"
    bench.materialise("writer")
    bench.compute("writer", 7)
    assert not bench.cache.ready("reader")
    with pytest.raises(ValueError, match="reader waits for blocks that writer has not computed"):
        bench.cache.materialise("reader")
    bench.compute("writer", 9)
    assert bench.cache.ready("reader")
    bench.compute("writer")
    bench.release("writer")
    bench.run("other", prompt(2, 20))
    assert bench.places(LONG)[:4] == [Tier.DEVICE] * 4, "however much room others want"
    bench.materialise("reader")
    bench.compute("reader")
    bench.release("reader")
    bench.cache.audit()


def test_who_comes_when_the_blocks_are_there_waits_for_nobody() -> None:
    bench = CacheBench(attention(16))
    bench.prepare("writer", LONG)
    bench.materialise("writer")
    bench.compute("writer", 8)
    assert behind(bench, "reader", [*LONG[:8], 5], "writer", 8) == Prepared(8, True)
    assert bench.cache.ready("reader")


@pytest.mark.parametrize("tokens", [[1, 1, 1, 1, 9, 9, 9], [7] * 9])
def test_a_writer_of_another_prompt_computes_nothing_for_it(tokens: list[int]) -> None:
    bench = CacheBench(attention(16))
    bench.prepare("writer", LONG)
    assert behind(bench, "reader", tokens, "writer", 6) == Prepared(0, False)
    assert bench.cache.ready("reader")


def test_a_writer_that_holds_nothing_here_is_no_writer() -> None:
    bench = CacheBench(attention(16))
    assert behind(bench, "reader", [*LONG[:8], 5], "gone", 8) == Prepared(0, False)


def test_a_reader_can_go_down_and_waits_for_less() -> None:
    bench = CacheBench(attention(16))
    bench.prepare("writer", LONG)
    behind(bench, "reader", [*LONG[:8], 5, 5], "writer", 8)
    assert bench.cache.commit("reader", 4) == Prepared(4, True)
    assert bench.cache.use().escrowed == 6 + 3
    bench.materialise("writer")
    bench.compute("writer", 4)
    assert bench.cache.ready("reader")


def test_a_chain_of_readers() -> None:
    bench = CacheBench(attention(24))
    bench.prepare("a", LONG)
    second, third = [*LONG[:8], *[2] * 6], [*LONG[:8], *[2] * 4, 3, 3]
    behind(bench, "b", second, "a", 8)
    behind(bench, "c", third, "b", 12)
    bench.materialise("a")
    bench.compute("a")
    bench.release("a")
    bench.materialise("b")
    assert not bench.cache.ready("c")
    bench.compute("b")
    bench.release("b")
    bench.materialise("c")
    bench.compute("c")
    bench.release("c")
    bench.cache.audit()


def test_blocks_that_the_tree_did_not_take_are_set_apart_for_the_reader() -> None:
    """What is before them was lost, so nobody else can find them; they go with the last who holds them."""
    bench = CacheBench(attention(16, disk=8))
    bench.run("earlier", LONG[:4])
    bench.prepare("writer", LONG)
    bench.materialise("writer")
    behind(bench, "reader", [*LONG[:8], 5], "writer", 8)
    node = bench.tree().nodes[keys_of(LONG)[0]]
    bench.cache.lose([Copy(0, node.key, node.tier, node.slot)])
    bench.compute("writer")
    assert bench.cache.ready("reader")
    assert bench.places(LONG) == [None] * 6
    bench.release("writer")
    bench.materialise("reader")
    bench.compute("reader")
    bench.release("reader")
    assert bench.cache.use().free == 16


def finish(bench: CacheBench, *names: str) -> None:
    """Run requests that wait for nobody to their end; then nobody holds anything."""
    for name in names:
        bench.materialise(name)
        bench.compute(name)
        bench.release(name)
    bench.cache.audit()


def test_once_its_chunk_has_begun_a_writer_is_resumed_only_where_it_takes_a_snapshot() -> None:
    bench = CacheBench(attention(24), recurrent(8, interval=4))
    bench.prepare("writer", LONG)
    bench.materialise("writer")
    bench.begin("writer", 10)
    reader = [*LONG[:10], 5, 5]
    assert behind(bench, "reader", reader, "writer", 10) == Prepared(8, False)
    assert bench.cache.commit("reader", 8) == Prepared(8, True)
    bench.compute("writer")
    assert bench.cache.ready("reader")
    assert behind(bench, "late", [*LONG[:5], 6], "writer", 4) == Prepared(4, True)
    bench.compute("writer")
    bench.release("writer")
    finish(bench, "reader", "late")


@pytest.mark.parametrize("begun", [0, 4, 9])
def test_a_writer_takes_a_snapshot_where_a_reader_needs_it(begun: int) -> None:
    bench = CacheBench(attention(24), recurrent(8, interval=100))
    bench.prepare("writer", LONG)
    if begun:
        bench.materialise("writer")
        bench.compute("writer", begun)
    before = bench.escrowed(1)
    assert behind(bench, "reader", [*LONG[:10], 5, 5], "writer", 10) == Prepared(10, True)
    assert behind(bench, "second", [*LONG[:10], 6, 6], "writer", 10) == Prepared(10, True)
    assert bench.escrowed(1) == before + 1 + 2, "one snapshot for both, and a working state of each"
    assert behind(bench, "nearer", [*LONG[:6], 6, 6], "writer", 6) == (
        Prepared(0, False) if begun == 9 else Prepared(6, True)
    )
    if not begun:
        bench.materialise("writer")
    bench.compute("writer")
    assert all(bench.cache.ready(name) for name in ("reader", "second", "nearer"))
    bench.release("writer")
    finish(bench, "reader", "second", "nearer")


def test_no_snapshot_is_asked_for_in_room_that_is_not_there() -> None:
    """One for the snapshot, one for the state of who resumes from it, beside all escrows."""
    bench = CacheBench(attention(60), recurrent(3, interval=100))
    bench.prepare("writer", LONG)
    bench.prepare("other", prompt(2, 2))
    assert behind(bench, "reader", [*LONG[:10], 5], "writer", 10) == Prepared(0, False)
    bench.release("reader")
    bench.release("other")
    assert behind(bench, "reader", [*LONG[:10], 5], "writer", 10) == Prepared(10, True)
    assert bench.prepare("other", prompt(2, 2)) is None, "the snapshot's room is the writer's"
    bench.materialise("writer")
    bench.compute("writer")
    bench.release("writer")
    finish(bench, "reader")


def test_the_room_of_a_snapshot_goes_back_with_its_writer() -> None:
    bench = CacheBench(attention(24), recurrent(8, interval=100))
    bench.prepare("writer", LONG)
    behind(bench, "reader", [*LONG[:10], 5], "writer", 10)
    bench.release("reader")
    bench.release("writer")
    bench.cache.audit()


def test_a_snapshot_is_taken_and_kept_for_others_though_its_reader_went() -> None:
    bench = CacheBench(attention(24), recurrent(8, interval=100))
    bench.prepare("writer", LONG)
    behind(bench, "reader", [*LONG[:10], 5], "writer", 10)
    bench.release("reader")
    finish(bench, "writer")
    assert bench.lease("late", [*LONG[:10], 6]) == 10
    bench.release("late")


def test_a_snapshot_takes_the_place_of_what_nobody_holds_when_its_chunk_begins() -> None:
    """Not when it is asked for: until then that can be reused, and after it from the host."""
    bench = CacheBench(attention(60), recurrent(3, host=1, interval=4))
    old, short = prompt(3, 10), prompt(1, 4)
    bench.run("old", old)
    bench.prepare("writer", short)
    bench.materialise("writer")
    assert behind(bench, "reader", [*short[:2], 5], "writer", 2) == Prepared(2, True)
    assert bench.places(old, 1) == [None, Tier.DEVICE, None, Tier.DEVICE, None]
    bench.compute("writer")
    assert bench.places(old, 1) == [None, Tier.HOST, None, Tier.DEVICE, None]
    bench.release("writer")
    finish(bench, "reader")


def test_a_chain_of_readers_each_asks_the_one_before() -> None:
    bench = CacheBench(attention(24), recurrent(8, interval=100))
    bench.prepare("a", LONG)
    second, third = [*LONG[:6], *[2] * 8], [*LONG[:6], *[2] * 4, 3, 3]
    assert behind(bench, "b", second, "a", 6) == Prepared(6, True)
    assert behind(bench, "c", third, "b", 10) == Prepared(10, True)
    for name in "abc":
        bench.materialise(name)
        bench.compute(name)
        bench.release(name)
    bench.cache.audit()


def test_a_reader_that_goes_down_asks_again() -> None:
    """Another rank can resume earlier only, where this one takes no snapshot by itself."""
    bench = CacheBench(attention(24), recurrent(8, interval=100))
    bench.prepare("writer", LONG)
    behind(bench, "reader", [*LONG[:10], 5, 5], "writer", 10)
    assert bench.cache.commit("reader", 6) == Prepared(6, True)
    bench.materialise("writer")
    bench.compute("writer", 6)
    assert bench.cache.ready("reader")
    bench.compute("writer")
    bench.release("writer")
    finish(bench, "reader")


def test_nothing_is_asked_of_a_request_that_resumes_beyond() -> None:
    bench = CacheBench(attention(24), recurrent(8, interval=8))
    bench.run("earlier", LONG)
    assert bench.prepare("writer", [*LONG[:8], 4, 4, 4, 4]) == Prepared(8, True)
    assert behind(bench, "reader", [*LONG[:6], 5], "writer", 6) == Prepared(0, False)
    bench.release("reader")
    behind(bench, "reader", [*LONG[:8], 4, 4, 5], "writer", 10)
    assert bench.cache.commit("reader", 6) == Prepared(0, False), "another rank has less"


def test_whoever_will_branch_off_is_expected_before_the_writer_begins() -> None:
    bench = CacheBench(attention(24), recurrent(8, interval=4))
    bench.run("earlier", LONG[:5])
    assert bench.prepare("writer", LONG) == Prepared(4, True)
    for endpoint in (10, 8, 4, 0, 100):
        bench.cache.ask("writer", endpoint)
    assert bench.escrowed(1) == 2 + 1, "at 8 it takes one by itself, at the others it cannot"
    bench.materialise("writer")
    bench.begin("writer", 12)
    assert behind(bench, "reader", [*LONG[:10], 5], "writer", 10) == Prepared(10, True)
    bench.compute("writer")
    bench.release("writer")
    finish(bench, "reader")


def test_snapshots_become_reusable_in_the_prompts_order_wherever_they_were_asked_for() -> None:
    bench = CacheBench(recurrent(8, interval=4))
    bench.prepare("writer", LONG)
    behind(bench, "reader", [*LONG[:6], 5], "writer", 6)
    bench.materialise("writer")
    bench.compute("writer")
    stored, _, _ = bench.cache.take_changes()
    assert [block.key for block in stored] == [keys_of(LONG)[at] for at in (1, 2, 3)]


def test_a_stateless_window_takes_no_snapshot_for_anybody() -> None:
    bench = CacheBench(WindowSpec("stateless", "recurrent", 8))
    bench.prepare("writer", LONG)
    assert behind(bench, "reader", [*LONG[:10], 5], "writer", 10) == Prepared(0, False)


def test_books_in_which_a_snapshot_is_missed_do_not_balance() -> None:
    bench = CacheBench(attention(24), recurrent(8, interval=100))
    bench.prepare("writer", LONG)
    behind(bench, "reader", [*LONG[:10], 5], "writer", 10)
    with bench.cache.windows() as windows:
        windows[1]._asked.clear()
    with pytest.raises(
        AuditError, match="reader waits for a snapshot after block 5 that writer will not take"
    ):
        bench.cache.check()


def test_a_sliding_window_is_handed_over_with_blocks_that_stayed_private() -> None:
    bench = CacheBench(SLIDING)
    bench.prepare("twin", LONG)
    bench.prepare("writer", LONG)
    behind(bench, "reader", [*LONG[:8], 5, 5], "writer", 8)
    for name in ("twin", "writer"):
        bench.materialise(name)
    bench.compute("twin")
    bench.compute("writer")
    bench.release("writer")
    bench.release("twin")
    bench.materialise("reader")
    bench.compute("reader")
    bench.release("reader")
    bench.cache.audit()


def test_books_in_which_a_reader_waits_for_ever_do_not_balance() -> None:
    bench = CacheBench(attention(16))
    bench.prepare("writer", LONG)
    behind(bench, "reader", [*LONG[:8], 5], "writer", 8)
    bench.cache.check()
    bench.prompts.pop("writer")
    bench.cache.release("writer")
    with pytest.raises(AuditError, match="reader waits for writer, which does not know"):
        bench.cache.check()
    bench.cache.release("reader")
    bench.cache.audit()


def test_readers_get_blocks_before_the_wave_that_computes_them_if_they_run_in_it() -> None:
    bench = CacheBench(attention(16))
    bench.prepare("writer", LONG)
    for name, length in (("reader", 8), ("further", 12)):
        assert behind(bench, name, [*LONG[:length], 5, 5], "writer", length) == Prepared(length, True)
        assert bench.cache.writer_of(name) == "writer"
    bench.materialise("writer")
    assert bench.compute_with_riders("writer", 9) == ["reader"]
    assert (bench.cache.writer_of("reader"), bench.cache.writer_of("further")) == ("", "writer")
    assert bench.compute_with_riders("writer", 12) == ["further"]
    for name in ("writer", "reader", "further"):
        bench.compute(name)
        bench.release(name)
    bench.cache.audit()


def test_what_another_had_computed_first_stays_the_writers_own_for_those_who_run_with_it() -> None:
    """The same blocks are there already, held by others, and what is before them may be lost."""
    bench = CacheBench(attention(24))
    bench.prepare("writer", LONG)
    behind(bench, "reader", [*LONG[:8], 5, 5], "writer", 8)
    bench.prepare("other", LONG)
    for name in ("other", "writer"):
        bench.materialise(name)
    bench.compute("other")
    assert "reader" in bench.compute_with_riders("writer", 12)
    for name in ("other", "writer", "reader"):
        bench.compute(name)
        bench.release(name)
    bench.cache.audit()


@pytest.mark.parametrize("spec", [SLIDING, recurrent(16)], ids=["sliding", "recurrent"])
def test_only_layers_that_keep_everything_can_read_within_a_wave(spec: WindowSpec) -> None:
    bench = CacheBench(attention(16), spec)
    bench.prepare("writer", LONG)
    bench.materialise("writer")
    bench.begin("writer", 4)
    with pytest.raises(ValueError, match="what writer computes cannot be read in the same wave"):
        bench.cache.publish_ahead("writer", 4)
