"""Grammars of every kind, on a tiny model's tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.compiler import GrammarCompiler, end_tokens
from wavepp_worker.model.grammar.grammar import Grammar

from tests.support.guided import Tokens
from tests.support.tiny_models import EOS, VOCABULARY

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def compiler(tiny_llama: Path) -> GrammarCompiler:
    return GrammarCompiler(tiny_llama, VOCABULARY)


@pytest.fixture(scope="module")
def tokens(tiny_llama: Path) -> Tokens:
    return Tokens(tiny_llama)


def matches(compiler: GrammarCompiler, tokens: Tokens, grammar: Grammar, text: str) -> bool:
    """Whether an answer can be ``text`` and end there."""
    matcher, done = compiler.compile(grammar), False
    for token in tokens.ids(text):
        if done or not matcher.allowed()[token // 8] >> token % 8 & 1:
            return False
        done = matcher.accept(token)
    return done or bool(matcher.allowed()[EOS // 8] >> EOS % 8 & 1)


OBJECT = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
CHOICES = ["a b", "c\nd", "e-f", "ü", "[x]", "a+", "\\", "/", '"', "#", "~&"]


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (
            Grammar("json", OBJECT),
            ['{"a": 1}', '{\n  "a": -20\n}', '{"a":0}'],
            ['{"a": 1.5}', "{}", '{"a": "x"}'],
        ),
        (Grammar("json", OBJECT), ["{" + " " * 64 + '"a":1}'], ["{" + " " * 65 + '"a":1}', ' {"a":1}']),
        (Grammar("json", "{}"), ["[1, null]", '"x"', "{}"], ["x", "[1,]"]),
        (Grammar("json", '{"oneOf": [{"type": "integer"}, {"minimum": 2}]}'), ["1", "[]"], ["x"]),
        (
            Grammar("json", '{"exclusiveMinimum": 0, "maximum": 0.5, "type": "number"}'),
            ["0.5", "0.01"],
            ["0"],
        ),
        (
            Grammar("json", '{"allOf": [{"exclusiveMaximum": -5, "type": "number"}, {"minimum": -5.3}]}'),
            ["-5.3", "-5.01"],
            ["-5", "-5.0", "-5.4"],
        ),
        (Grammar("regex", "a\\\\"), ["a\\"], ["a"]),
        (Grammar("regex", "[a-c]+d"), ["abcd", "ad"], ["d", "abc", "abcdd", "xabcd"]),
        (Grammar("regex", "(a+)+b"), ["aab"], ["aa"]),
        (Grammar("choice", json.dumps(CHOICES)), CHOICES, ["a", "a bc\nd", "aa", "aaa", "x", ""]),
        (Grammar("choice", '["", "a"]'), ["", "a"], ["b"]),
        (Grammar("rules", 'root ::= "a" root | "b"'), ["b", "aab"], ["a", "bb"]),
        (Grammar("rules", 'start: "a" (B | "c")\nB: /b+/'), ["abb", "ac"], ["a", "abc"]),
    ],
)
def test_answers_match_or_do_not(
    compiler: GrammarCompiler, tokens: Tokens, grammar: Grammar, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not matches(compiler, tokens, grammar, text)] == []
    assert [text for text in wrong if matches(compiler, tokens, grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "sentence"),
    [
        (Grammar("json", '{"type": "objekt"}'), "the JSON schema cannot be honoured: .*objekt"),
        (Grammar("json", '{"uniqueItems": true, "type": "array"}'), "the JSON schema .*uniqueItems"),
        (Grammar("json", '{"$ref": "http://example.com/x.json"}'), "the JSON schema .*not present"),
        (
            Grammar("json", '{"type": "integer", "minimum": 9223372036854775808}'),
            "minimum 9223372036854775808",
        ),
        (
            Grammar("json", '{"patternProperties": {"a\\\\": {}}}'),
            "the JSON schema cannot be read: the expression .* ends in a backslash",
        ),
        (Grammar("json", '{"type": "string", "pattern": "a\\\\"}'), "ends in a backslash"),
        (Grammar("regex", "\\"), "the regular expression cannot be read: .* ends in a backslash"),
        (Grammar("regex", "a\\\\\\"), "ends in a backslash"),
        (Grammar("regex", "(a"), "the regular expression cannot be honoured: unclosed group"),
        (Grammar("regex", r"(a)\1"), "backreferences are not supported"),
        (Grammar("choice", "[]"), "the list of choices cannot be read: it should be a list of texts"),
        (Grammar("choice", "[1]"), "the list of choices cannot be read"),
        (Grammar("rules", "start: nothing_of_that_name"), "the grammar cannot be honoured: unknown name"),
        (Grammar("rules", "root ::= ((("), "the grammar cannot be read: Expected"),
        (Grammar("rules", "root ::= " + "(" * 5000), "the grammar cannot be read"),
        (Grammar("rules", ""), "the grammar cannot be"),
    ],
)
def test_what_is_wrong_with_a_grammar_is_said(
    compiler: GrammarCompiler, grammar: Grammar, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        compiler.compile(grammar)


def test_a_tokenizer_of_another_kind_is_said_to_be_the_cause(tiny_llama: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    (model / "tokenizer.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="its tokenizer is of a kind that cannot be guided"):
            GrammarCompiler(model, VOCABULARY).compile(Grammar("regex", "a"))


def test_the_vocabularies_of_tokenizer_and_model_may_differ(tiny_llama: Path) -> None:
    for size in (VOCABULARY + 50, EOS + 1, VOCABULARY):
        mask = GrammarCompiler(tiny_llama, size).compile(Grammar("regex", "a")).allowed()
        assert 8 * len(mask) >= size


def test_the_tokens_that_end_an_answer_are_those_that_any_file_names(tmp_path: Path) -> None:
    def write(name: str, **values: object) -> None:
        (tmp_path / name).write_text(json.dumps(values))

    tokenizer = json.dumps({"added_tokens": [{"id": 4, "content": "<end>"}, {"id": 5, "content": "<pad>"}]})
    with pytest.raises(ValueError, match="no token that ends"):
        end_tokens(tmp_path, tokenizer, 10)
    write("config.json", eos_token_id=1)
    assert end_tokens(tmp_path, tokenizer, 10) == [1]
    write("generation_config.json", eos_token_id=[2, 1, 10])
    assert end_tokens(tmp_path, tokenizer, 10) == [2, 1]
    write("tokenizer_config.json", eos_token="<end>")
    assert end_tokens(tmp_path, tokenizer, 10) == [2, 1, 4]
    write("tokenizer_config.json", eos_token={"content": "<end>"})
    assert end_tokens(tmp_path, "{}", 10) == [2, 1]
    assert end_tokens(tmp_path, tokenizer, 10) == [2, 1, 4]


def test_an_object_may_have_many_optional_properties(compiler: GrammarCompiler, tokens: Tokens) -> None:
    properties = {f"p{number}": {"type": "integer"} for number in range(1500)}
    grammar = Grammar(
        "json", json.dumps({"type": "object", "properties": properties, "additionalProperties": False})
    )
    assert matches(compiler, tokens, grammar, '{"p17": 1, "p1400": 2}')
    assert not matches(compiler, tokens, grammar, '{"p1500": 1}')
