"""Whether messages can be written as prompts is known before a model is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.chat_template import MessageWriter, message_writer

ONE = [{"role": "user", "content": "x"}]


def model(directory: Path, **said: Any) -> Path:
    (directory / "tokenizer_config.json").write_text(json.dumps(said))
    return directory


def written(directory: Path, custom: Path | None = None) -> str:
    writer = message_writer(directory, custom)
    assert writer is not None
    return writer.write(ONE, {})


def test_it_is_taken_from_where_transformers_takes_it(tmp_path: Path) -> None:
    assert message_writer(tmp_path) is None
    assert message_writer(model(tmp_path, bos_token="<s>")) is None
    assert written(model(tmp_path, chat_template="{{ bos_token }}a", bos_token={"content": "<s>"})) == "<s>a"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert written(model(tmp_path, chat_template=named)) == "d"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert written(tmp_path) == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert written(tmp_path) == "jinja"
    (tmp_path / "other").write_text("custom")
    assert written(tmp_path, tmp_path / "other") == "custom"


@pytest.mark.parametrize("source", ["{% for m in messages %}{{ m", "{{ raise_exception('x') ", "{% fro %}"])
def test_an_error_of_syntax_is_refused_with_its_place(source: str, tmp_path: Path) -> None:
    begin = r"^model: the chat template in .*/tokenizer_config\.json has an error of syntax in its line 2 \("
    with pytest.raises(ConfigError, match=begin):
        message_writer(model(tmp_path, chat_template="a\n" + source))


def test_a_template_of_ones_own_has_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("{{")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for file, why in (
        (tmp_path / "none", "does not exist"),
        (tmp_path, "cannot be read as a chat template (Is a directory)"),
        (tmp_path / "bytes", "cannot be read as a chat template ('utf-8' codec"),
        (tmp_path / "bad", "has an error of syntax in its line 1"),
    ):
        with pytest.raises(ConfigError) as refused:
            message_writer(tmp_path, file)
        assert str(refused.value).startswith("custom_jinja_template: ")
        assert why in str(refused.value)


def test_what_it_does_not_take_is_said_in_its_words() -> None:
    assert MessageWriter("{{ messages[0].content }}", {}).objection() is None
    assert MessageWriter("{{ raise_exception('only\n tools') }}", {}).objection() == "only tools"
    assert "division" in (MessageWriter("{{ 1 // 0 }}", {}).objection() or "")


def test_what_transformers_adds_to_jinja_is_known() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
        "{{ strftime_now('%Y') | length }}"
    )
    assert MessageWriter(source, {}).write([{"content": "x"}, {"content": "y"}], {}) == "x4"
