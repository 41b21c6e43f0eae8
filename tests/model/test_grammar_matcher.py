from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.grammar import Grammar
from wavepp_worker.model.grammar_compiler import GrammarCompiler
from wavepp_worker.model.grammar_matcher import GrammarMatcher

from tests.support.guided import Tokens
from tests.support.tiny_models import EOS, VOCABULARY

pytest.importorskip("llguidance")


@pytest.fixture
def matcher(tiny_llama: Path) -> GrammarMatcher:
    return GrammarCompiler(tiny_llama, VOCABULARY).compile(Grammar("regex", "a[xy]?"))


@pytest.fixture(scope="module")
def tokens(tiny_llama: Path) -> Tokens:
    return Tokens(tiny_llama)


def test_an_answer_goes_on_until_nothing_can_follow(matcher: GrammarMatcher, tokens: Tokens) -> None:
    assert tokens.left(matcher.allowed()) == {"a"}
    assert not matcher.accept(*tokens.ids("a"))
    assert tokens.left(matcher.allowed()) == {"x", "y", ""}
    other = matcher.fresh()
    assert matcher.accept(*tokens.ids("x")), "complete"
    assert tokens.left(other.allowed()) == {"x", "y", ""}, "another answer has not moved"
    assert other.accept(EOS), "ended"


def test_what_may_not_follow_is_not_accepted(matcher: GrammarMatcher, tokens: Tokens) -> None:
    with pytest.raises(WaveppError, match="the grammar cannot be followed"):
        matcher.accept(*tokens.ids("b"))


def test_a_grammar_that_nothing_matches_has_no_first_token(tiny_llama: Path) -> None:
    compiler = GrammarCompiler(tiny_llama, VOCABULARY)
    for grammar in (
        Grammar("rules", "start: start"),
        Grammar("json", '{"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}'),
    ):
        with pytest.raises(WaveppError, match="no text at all goes on to match"):
            compiler.compile(grammar).allowed()
