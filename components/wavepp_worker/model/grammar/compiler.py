"""From a grammar and a model's tokenizer to a matcher. Only processes that have a grammar to compile load anything."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.files.checkpoint import TOKENIZER
from wavepp_worker.model.grammar.grammar import Grammar
from wavepp_worker.model.grammar.json_schemas import schemas_in
from wavepp_worker.model.grammar.matcher import Aside, GrammarMatcher
from wavepp_worker.model.grammar.schema_bounds import settle_bounds

_WHITESPACE = "[ \\t\\n\\r]{1,64}"
"""Between the parts of JSON. Without a bound some models write nothing else until their tokens are used up."""
_LIMITS = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_items_in_row": 20_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
"""What one grammar may cost, in llguidance's units: about a fifth of its defaults, which are for schemas one trusts.

But for the items of one row, of which an object takes four for each optional property: its default is 2,000.
"""
_NO_GRAMMAR = "!"
_META = frozenset("\\.+*?()|[]{}^$#&-~/ ")


class GrammarCompiler:
    """Compiles grammars for one model. Thread-safe.

    A grammar that nobody has judged (``GrammarJudge``) may take all memory, or end the process.
    """

    def __init__(self, model: Path, vocab_size: int) -> None:
        """Nothing is loaded yet.

        Args:
            model: directory with the tokenizer.
            vocab_size: of the model: at least that many bits has a mask.
        """
        self._model = model
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._aside: Aside | None = None

    def compile(self, grammar: Grammar) -> GrammarMatcher:
        """A matcher at the beginning of an answer.

        Raises:
            InvalidRequest: the grammar is wrong, matches nothing or is too complex; or the model's tokenizer is of a
                kind that cannot be guided.
        """
        from llguidance import LLMatcher, LLParserLimits

        tokenizer = self.load()
        try:
            source = _source(grammar)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{_NAMES[grammar.kind]} cannot be read: {_short(error)}") from error
        matcher = LLMatcher(tokenizer, source, log_level=0, limits=LLParserLimits(**_LIMITS))
        if matcher.is_error():
            raise InvalidRequest(f"{_NAMES[grammar.kind]} cannot be honoured: {_short(matcher.get_error())}")
        with self._lock:
            if self._aside is None:
                self._aside = Aside(LLMatcher(tokenizer, _NO_GRAMMAR, log_level=0))
        return GrammarMatcher(matcher, self._aside)

    def load(self) -> Any:
        """The tokenizer, read once.

        Raises:
            InvalidRequest: there is none that can be guided.
        """
        from llguidance import LLTokenizer

        with self._lock:
            if self._tokenizer is None:
                try:
                    text = (self._model / TOKENIZER).read_text()
                    ends = end_tokens(self._model, text, self._vocab_size)
                    try:
                        self._tokenizer = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=ends)
                    except ValueError:
                        # Some tokenizers have more tokens than their model.
                        self._tokenizer = LLTokenizer(text, eos_token=ends)
                except (OSError, ValueError) as error:
                    raise InvalidRequest(
                        f"this model's answers cannot be constrained, as its tokenizer is of a kind that cannot be "
                        f"guided ({_short(error)}); leave the constraint out"
                    ) from error
            return self._tokenizer


_NAMES = {
    "json": "the JSON schema",
    "regex": "the regular expression",
    "choice": "the list of choices",
    "rules": "the grammar",
}


def end_tokens(model: Path, tokenizer: str, vocab_size: int) -> list[int]:
    """Ids of the tokens that end an answer, as the model's files name them.

    Args:
        model: its directory.
        tokenizer: the text of its ``tokenizer.json``.
        vocab_size: ids are below it.

    Raises:
        ValueError: there are none.
    """
    named: list[Any] = []
    for file in ("generation_config.json", "config.json"):
        value = _read(model / file).get("eos_token_id")
        named += value if isinstance(value, list) else [value]
    word = _read(model / "tokenizer_config.json").get("eos_token")
    word = word.get("content") if isinstance(word, dict) else word
    named += [each["id"] for each in json.loads(tokenizer).get("added_tokens", []) if each["content"] == word]
    ids = dict.fromkeys(token for token in named if isinstance(token, int) and 0 <= token < vocab_size)
    if not ids:
        raise ValueError("it names no token that ends an answer")
    return list(ids)


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    return value if isinstance(value, dict) else {}


def _source(grammar: Grammar) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    match grammar.kind:
        case "json":
            options: Any = {"whitespace_pattern": _WHITESPACE, "coerce_one_of": True}
            return str(LLMatcher.grammar_from_json_schema(_settled(grammar.text), overrides=options))
        case "regex":
            _check_expression(grammar.text)
            return str(LLMatcher.grammar_from_regex(grammar.text))
        case "choice":
            return str(LLMatcher.grammar_from_regex(f"({'|'.join(map(_quoted, _choices(grammar.text)))})"))
        case "rules":
            try:
                return str(LLMatcher.grammar_from_lark(any_to_lark(grammar.text)))
            except Exception as error:  # its parser has a class of its own, and none for some texts
                raise ValueError(str(error) or type(error).__name__) from error


def _settled(schema: str) -> str:
    """A schema of which the compiler honours everything that it takes."""
    whole = json.loads(schema)
    schemas = list(schemas_in(whole))
    for each in schemas:
        named = each.get("patternProperties")
        for pattern in (each.get("pattern"), *(named if isinstance(named, dict) else ())):
            if isinstance(pattern, str):
                _check_expression(pattern)
    return json.dumps(whole) if settle_bounds(schemas) else schema


def _check_expression(text: str) -> None:
    """Refuse an end that the compiler would leave out."""
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise ValueError(f"the expression {text[-40:]!r} ends in a backslash that stands before nothing")


def _choices(text: str) -> Iterable[str]:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
        raise ValueError("it should be a list of texts, and not empty")
    return choices


def _quoted(text: str) -> str:
    return "".join(f"\\{char}" if char in _META else char for char in text)


def _short(error: object) -> str:
    """The line of what a library says that is about the cause; others show where that is in a text of its own."""
    lines = str(error).strip().splitlines() or ["it does not say why"]
    line = next((each for each in lines if each.startswith("error: ")), lines[0])
    if "limits." in line:
        # Of settings that nobody has here.
        return "it is too complex to be followed; simplify it"
    return re.sub(r"^(error|at \d+\(\d+\)): ", "", line)[:200]
