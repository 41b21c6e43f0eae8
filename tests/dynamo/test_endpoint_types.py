"""Who is offered for chats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from wavepp_worker.dynamo.args import DecodeArgs
from wavepp_worker.dynamo.endpoint_types import check_endpoint_types, with_endpoint_types
from wavepp_worker.errors import ConfigError


@pytest.mark.parametrize(
    ("flags", "template", "types"),
    [
        ("", True, "chat,completions"),
        ("", False, "completions"),
        ("--custom-jinja-template /t.jinja", False, "chat,completions"),
        ("--endpoint-types none", False, "none"),
        ("--endpoint-types completions", True, "completions"),
    ],
)
def test_a_model_without_a_chat_template_is_offered_for_completions_alone(
    flags: str, template: bool, types: str, tiny_llama: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    if not template:
        said = json.loads((model / "tokenizer_config.json").read_text())
        del said["chat_template"]
        (model / "tokenizer_config.json").write_text(json.dumps(said))
    options = DecodeArgs.parse(["--model", str(model), *flags.split()]).runtime.options
    assert with_endpoint_types(options, model).endpoint_types == types


@pytest.mark.parametrize("value", ["chat,foo", "", "none,chat", ","])
def test_what_dynamo_would_refuse_when_the_model_is_loaded_is_refused_at_once(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^--endpoint-types: .* give chat, completions or both$"):
        check_endpoint_types(value)
    check_endpoint_types("Chat, completions")
