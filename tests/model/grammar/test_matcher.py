from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.grammar.compiler import GrammarCompiler
from wavepp_worker.model.grammar.grammar import Grammar
from wavepp_worker.model.grammar.matcher import GrammarMatcher

from tests.support.guided import Tokens
from tests.support.tiny_models import EOS, VOCABULARY

pytest.importorskip("llguidance")


@pytest.fixture
def matcher(tiny_llama: Path) -> GrammarMatcher:
    return GrammarCompiler(tiny_llama, VOCABULARY).compile(Grammar("regex", "a[xy]?"))


@pytest.fixture(scope="module")
def tokens(tiny_llama: Path) -> Tokens:
    return Tokens(tiny_llama)


@pytest.mark.parametrize("aside", [False, True])
def test_an_answer_goes_on_until_nothing_can_follow(
    matcher: GrammarMatcher, tokens: Tokens, aside: bool
) -> None:
    assert tokens.left(matcher.allowed()) == {"a"}
    assert not matcher.accept(*tokens.ids("a"), aside)
    assert tokens.left(matcher.allowed()) == {"x", "y", ""}
    other = matcher.fresh()
    assert matcher.accept(*tokens.ids("x"), aside), "complete"
    assert tokens.left(other.allowed()) == {"x", "y", ""}, "another answer has not moved"
    assert other.accept(EOS, aside), "ended"


@pytest.mark.parametrize("aside", [False, True])
def test_what_may_not_follow_is_not_accepted(matcher: GrammarMatcher, tokens: Tokens, aside: bool) -> None:
    with pytest.raises(WaveppError, match="the grammar cannot be followed"):
        matcher.accept(*tokens.ids("b"), aside)


def test_other_threads_run_while_a_token_is_taken_aside(tiny_llama: Path, tokens: Tokens) -> None:
    others = "\n".join(f"r{n}: s" for n in range(60))
    ambiguous = f"start: s\ns: {' | '.join(f's r{n}' for n in range(60))} | /[a-z]/\n{others}"
    matcher = GrammarCompiler(tiny_llama, VOCABULARY).compile(Grammar("rules", ambiguous))
    (token,) = tokens.ids("a")
    # Each takes longer than the one before.
    for _ in range(9):
        matcher.accept(token)
    moments, taken = list[float](), list[float]()

    def take() -> None:
        taken.append(time.monotonic())
        matcher.accept(token, aside=True)
        taken.append(time.monotonic())

    thread = threading.Thread(target=take)
    thread.start()
    while len(taken) < 2:
        moments.append(time.monotonic())
    thread.join()
    begun, done = taken
    # Half, as the other thread may run before this one says when it was done.
    assert sum(begun < moment < (begun + done) / 2 for moment in moments) > 10, done - begun


def test_a_grammar_that_nothing_matches_has_no_first_token(tiny_llama: Path) -> None:
    compiler = GrammarCompiler(tiny_llama, VOCABULARY)
    for grammar in (
        Grammar("rules", "start: start"),
        Grammar("json", '{"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}'),
    ):
        with pytest.raises(WaveppError, match="no text at all goes on to match"):
            compiler.compile(grammar).allowed()
