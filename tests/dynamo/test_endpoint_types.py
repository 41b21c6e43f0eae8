"""Who is offered for chats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from wavepp_worker.dynamo.args import DecodeArgs
from wavepp_worker.dynamo.endpoint_types import with_endpoint_types


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
