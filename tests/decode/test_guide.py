"""Guides of answers that must match a grammar, on a tiny model's tokenizer."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from wavepp_worker.decode import guide as guides_module
from wavepp_worker.decode.guide import Guide, Guides
from wavepp_worker.decode.guide_turns import GuideTurns
from wavepp_worker.errors import InvalidRequest, WaveppError
from wavepp_worker.model.grammar.compiler import GrammarCompiler
from wavepp_worker.model.grammar.grammar import Grammar
from wavepp_worker.model.grammar.judge import GrammarJudge
from wavepp_worker.model.grammar.matcher import GrammarMatcher

from tests.support.guided import SlowMatcher, Tokens
from tests.support.tiny_models import VOCABULARY
from tests.support.waiting import WAIT_SECONDS, wait_until

pytest.importorskip("llguidance")


@pytest.fixture
def guides(tiny_llama: Path) -> Iterator[Guides]:
    guides = Guides(GrammarJudge(tiny_llama, VOCABULARY), GrammarCompiler(tiny_llama, VOCABULARY))
    yield guides
    guides.close()


def test_two_answers_to_one_grammar_go_their_own_ways(
    guides: Guides, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(tiny_llama)
    grammar = Grammar("regex", "a(b|cd)")
    one = guides.guide(grammar).result(WAIT_SECONDS)
    monkeypatch.setattr(guides._compiler, "compile", lambda grammar: pytest.fail("compiled again"))
    two = guides.guide(grammar).result(WAIT_SECONDS)

    def left(guide: Guide) -> set[str]:
        guide.begin()
        mask = guide.allowed(WAIT_SECONDS)
        assert mask is not None
        return tokens.left(mask)

    (a,), (b,), (c,) = map(tokens.ids, "abc")
    assert (left(one), left(two)) == ({"a"}, {"a"})

    def complete_with(guide: Guide, token: int) -> bool:
        guide.accept(token)
        return guide.complete(WAIT_SECONDS)

    assert not complete_with(one, a)
    assert (left(one), left(two)) == ({"b", "c"}, {"a"})
    assert not complete_with(two, a)
    assert not complete_with(two, c)
    assert complete_with(one, b)
    assert left(two) == {"d"}
    with pytest.raises(WaveppError, match="cannot be followed"):
        complete_with(two, a)


@pytest.mark.parametrize("seconds", [0.0, math.inf])
def test_answers_go_on_alike_whether_tokens_are_taken_at_once_or_in_a_guides_thread(
    guides: Guides, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(guides_module, "DIRECT_SECONDS", seconds)
    tokens, schema = (
        Tokens(tiny_llama),
        '{"type": "array", "items": {"enum": ["a", 7]}, "minItems": 3, "maxItems": 3}',
    )
    guide = guides.guide(Grammar("json", schema)).result(WAIT_SECONDS)
    for text in '["a",7,"a"':
        guide.begin()
        mask = guide.allowed(WAIT_SECONDS)
        assert mask is not None
        assert text in tokens.left(mask)
        (token,) = tokens.ids(text)
        guide.accept(token)
        assert not guide.complete(WAIT_SECONDS)
    (last, wrong) = (tokens.ids(text)[0] for text in ("]", "x"))
    guide.begin()
    guide.allowed(WAIT_SECONDS)
    guide.accept(last)
    assert guide.complete(WAIT_SECONDS)

    def go_wrong() -> None:
        guide = guides.guide(Grammar("json", schema)).result(WAIT_SECONDS)
        guide.begin()
        guide.allowed(WAIT_SECONDS)
        guide.accept(wrong)
        guide.complete(WAIT_SECONDS)

    with pytest.raises(WaveppError, match="cannot be followed"):
        go_wrong()


def test_where_nothing_can_follow_a_token_that_a_guides_thread_took_that_is_what_is_found(
    threads: ThreadPoolExecutor,
) -> None:
    class Complete(SlowMatcher):
        def accept(self, token: int, aside: bool = False) -> bool:
            return True

    guide = Guide(Complete(b"\x01"), GuideTurns(threads, 1))
    guide.accept(5)
    assert guide.allowed(WAIT_SECONDS) == b""
    assert guide.complete(0)


def test_a_grammar_that_is_refused_is_not_compiled_here(
    guides: Guides, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guides._compiler, "compile", lambda grammar: pytest.fail("compiled"))
    with pytest.raises(InvalidRequest, match="unclosed group"):
        guides.guide(Grammar("regex", "(a")).result(WAIT_SECONDS)


def test_only_so_many_grammars_are_kept(guides: Guides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides_module, "MOST_COMPILED", 2)
    for text in "abcab":
        guides.guide(Grammar("regex", text)).result(WAIT_SECONDS)
    assert [grammar.text for grammar in guides._compiled] == ["a", "b"]


def test_what_may_come_next_is_found_out_once_and_waited_for_in_time(threads: ThreadPoolExecutor) -> None:
    matcher = SlowMatcher(b"\x01")
    guide = Guide(matcher, GuideTurns(threads, 1))
    guide.begin()
    guide.begin()
    assert guide.allowed(0) is None
    matcher.go.set()
    assert guide.allowed(WAIT_SECONDS) == b"\x01"
    assert guide.allowed(0) == b"\x01"
    assert matcher.asked == 1
    guide.accept(0)
    guide.begin()
    assert guide.allowed(WAIT_SECONDS) == b"\x01"
    assert matcher.asked == 2


def test_a_token_is_taken_in_a_guides_thread(threads: ThreadPoolExecutor) -> None:
    class Taking(SlowMatcher):
        def accept(self, token: int, aside: bool = False) -> bool:
            assert self.go.wait(WAIT_SECONDS)
            return super().accept(token, aside)

    matcher = Taking(b"\x01")
    guide = Guide(matcher, GuideTurns(threads, 1))
    guide.accept(5)
    assert not guide.complete(0)
    assert guide.allowed(0) is None
    matcher.go.set()
    assert not guide.complete(WAIT_SECONDS)
    assert guide.allowed(WAIT_SECONDS) == b"\x01"
    assert matcher.accepted == [5]


def test_what_nobody_wants_any_more_is_not_found_out(threads: ThreadPoolExecutor) -> None:
    turns, running, left = GuideTurns(threads, 1), SlowMatcher(b"\x01"), SlowMatcher(b"\x01")
    first, second = Guide(running, turns), Guide(left, turns)
    first.begin()
    wait_until(lambda: running.asked)
    second.cancel()
    second.begin()
    second.cancel()
    running.go.set()
    assert threads.submit(lambda: left.asked).result(WAIT_SECONDS) == 0


def test_a_grammar_that_takes_too_long_for_a_token_fails_its_answer(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher = SlowMatcher(b"\x01")
    guide = Guide(matcher, GuideTurns(threads, 1))
    guide.begin()
    wait_until(lambda: matcher.asked)
    monkeypatch.setattr(guides_module, "MASK_SECONDS", 0.0)
    with pytest.raises(WaveppError, match="too complex: its next token took more than"):
        guide.allowed(0)
    matcher.go.set()


_STOPPED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from wavepp_worker.decode import guide as module
from wavepp_worker.decode.guide_turns import GuideTurns

module.MASK_SECONDS = 2.0

class Matcher:
    def allowed(self):
        print("begun", flush=True)
        return sys.stdin.readline().encode()

guide = module.Guide(Matcher(), GuideTurns(ThreadPoolExecutor(1), 1))
guide.begin()
while (found := guide.allowed(0.01)) is None:
    pass
print(found.decode(), end="", flush=True)
"""


def test_a_mask_is_not_too_complex_because_the_process_was_stopped() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        # Time that passes while it stands still is what this is about.
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        assert process.communicate("found\n")[0] == "found\n"


def test_who_takes_least_of_the_threads_comes_first_and_waiting_is_not_held_against_it(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guides_module, "MASK_SECONDS", 0.0)
    turns, order = GuideTurns(threads, 1), list[str]()

    class Named(SlowMatcher):
        def allowed(self) -> bytes:
            order.append(self.mask.decode())
            return super().allowed()

    costly, cheap, blocking = (Named(name) for name in (b"costly", b"cheap", b"blocking"))
    guides = [Guide(matcher, turns) for matcher in (costly, cheap)]
    guides[0]._taken = 0.2
    running = Guide(blocking, turns)
    running.begin()
    wait_until(lambda: blocking.asked)
    for guide in guides:
        guide.begin()
    costly.go.set()
    cheap.go.set()
    assert [guide.allowed(0) for guide in guides] == [None, None], "however long others take"
    blocking.go.set()
    assert guides[0].allowed(WAIT_SECONDS) == b"costly"
    assert order == ["blocking", "cheap", "costly"]


def test_what_others_have_compiled_keeps_no_answer_waiting(
    guides: Guides, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide, compile_, go = (
        guides.guide(Grammar("regex", "ab")).result(WAIT_SECONDS),
        guides._compiler.compile,
        threading.Event(),
    )
    monkeypatch.setattr(guides._compiler, "compile", lambda one: go.wait(WAIT_SECONDS) and compile_(one))
    others = [guides.guide(Grammar("regex", f"{n}")) for n in range(guides_module.THREADS + 1)]
    guide.begin()
    assert guide.allowed(WAIT_SECONDS / 2) is not None
    assert not any(other.done() for other in others)
    go.set()
    assert all(other.result(WAIT_SECONDS) for other in others)


def test_stacks_are_deeper_than_where_a_grammar_is_judged(guides: Guides) -> None:
    before = threading.stack_size()
    guides.guide(Grammar("regex", "a")).result(WAIT_SECONDS)
    assert threading.stack_size() == before, "nobody else's"

    def depth(left: int) -> int:
        return 0 if not left else depth(left - 1)

    assert guides._own_threads().compiling.submit(depth, 500).result(WAIT_SECONDS) == 0
    assert isinstance(guides._compiled[Grammar("regex", "a")], GrammarMatcher)
