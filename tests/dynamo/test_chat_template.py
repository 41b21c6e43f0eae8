from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.dynamo.chat_template import ChatTemplate
from wavepp_worker.model.files.chat_template import MessageWriter

SOURCE = """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'system' %}{{ raise_exception('no system messages') }}{% endif %}
{{ '<' + message['content'] + '>' }}{% endfor %}"""


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([{"role": "user", "content": []}], "does not take these messages"),
        ([{"role": "assistant", "content": None}], "does not take these messages"),
        ([{"role": "user"}], "does not take these messages"),
        ([{"role": "system", "content": "x"}], "no system messages"),
        (["x"], "does not take these messages"),
    ],
)
def test_a_chat_that_the_template_does_not_take_is_told_why(messages: list[Any], sentence: str) -> None:
    assert sentence in (ChatTemplate(MessageWriter(SOURCE, {})).complaint({"messages": messages}) or "")


def test_a_chat_that_it_takes_is_not_to_blame() -> None:
    template = ChatTemplate(MessageWriter(SOURCE, {"bos_token": "<s>"}))
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": parts}]}
    assert template.complaint(body) is None
    assert template.complaint({**body, "chat_template_args": {"messages": 5}}) is None


def test_a_template_is_found_where_models_have_it(tmp_path: Path) -> None:
    assert ChatTemplate.read(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "{{ messages[0].content + 'a' }}", "eos_token": "x"}))
    template = ChatTemplate.read(tmp_path)
    assert template is not None
    assert template.complaint({"messages": [{"content": None}]}) is not None
    (tmp_path / "chat_template.jinja").write_text("nothing")
    template = ChatTemplate.read(tmp_path)
    assert template is not None
    assert template.complaint({"messages": [{"content": None}]}) is None
    (tmp_path / "chat_template.jinja").write_text("{{")
    assert ChatTemplate.read(tmp_path) is None
