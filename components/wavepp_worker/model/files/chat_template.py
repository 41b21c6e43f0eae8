"""A model's chat template: where it lies, and whether messages can be written with it. Needs no tensor library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.checkpoint import read_json

_ONE_MESSAGE = ({"role": "user", "content": "Why is the sky blue?"},)


class _Generation(Extension):
    """``{% generation %}`` marks what the model said, which says nothing to who only writes prompts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class MessageWriter:
    """Writes the messages of a chat as a prompt, by the rules that transformers renders templates with.

    Args:
        source: the template.
        special: what it may know beside the chat, such as ``bos_token``.

    Raises:
        TemplateSyntaxError: it is no template.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._template = environment.from_string(source)
        self._special = special

    def write(self, messages: Sequence[Any], known: Mapping[str, Any]) -> str:
        """The prompt, for an answer to follow; ``known`` is what a request adds to what the template may know.

        Raises:
            Exception: whatever the template fails with.
        """
        all_known = {"add_generation_prompt": True, **self._special, "tools": None, **known}
        return self._template.render({**all_known, "messages": messages})

    def objection(self) -> str | None:
        """Why it does not take one message of a user, with which most chats begin; None if it does."""
        try:
            self.write(_ONE_MESSAGE, {})
        except Exception as error:  # a template may fail with anything
            return " ".join(str(error).split()) or type(error).__name__
        return None


def message_writer(model_dir: Path, custom: Path | None = None) -> MessageWriter | None:
    """What writes the chats of a model; None if it has no template.

    Args:
        model_dir: a Hugging Face directory.
        custom: a file to be used instead of the model's own template.

    Raises:
        ConfigError: the template cannot be read, or has an error of syntax; begins with ``model``, or with
            ``custom_jinja_template``.
    """
    config = _tokenizer_config(model_dir)
    special = {key: _text(value) for key, value in config.items() if key.endswith("_token")}
    if custom is not None:
        return _writer("custom_jinja_template", custom, _read("custom_jinja_template", custom), special)
    plain, wrapped = model_dir / "chat_template.jinja", model_dir / "chat_template.json"
    if plain.is_file():
        return _writer("model", plain, _read("model", plain), special)
    file = wrapped if wrapped.is_file() else model_dir / "tokenizer_config.json"
    source = (read_json(file) if wrapped.is_file() else config).get("chat_template")
    if isinstance(source, list):
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default", next(iter(named.values()), None))
    if not source:
        return None
    if not isinstance(source, str):
        raise ConfigError(f"model: the chat_template in {file} is {type(source).__name__}; it should be text")
    return _writer("model", file, source, special)


def _writer(key: str, file: Path, source: str, special: Mapping[str, str]) -> MessageWriter:
    try:
        return MessageWriter(source, special)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"{key}: the chat template in {file} has an error of syntax in its line {error.lineno} "
            f"({' '.join(str(error.message).split())}); mend it"
        ) from error


def _read(key: str, file: Path) -> str:
    if not file.exists():
        raise ConfigError(f"{key}: {file} does not exist; give the path of a file with a chat template")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{key}: {file} cannot be read as a chat template ({why})") from error


def _tokenizer_config(model_dir: Path) -> dict[str, Any]:
    file = model_dir / "tokenizer_config.json"
    return read_json(file) if file.is_file() else {}


def _text(token: Any) -> str:
    """A special token's text, which may lie in its description."""
    return str(token.get("content", "")) if isinstance(token, dict) else "" if token is None else str(token)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
