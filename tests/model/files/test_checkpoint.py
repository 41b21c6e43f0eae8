from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_info import read_model_info

from tests.support.model_files import edit_json


def test_identity_is_of_the_content(copy: Path, tiny_llama: Path, tiny_qwen3: Path) -> None:
    identity = read_model_info(tiny_llama).model_id
    int(identity, 16)
    assert read_model_info(copy).model_id == identity
    edit_json(copy / "config.json", transformers_version="5.0.0")
    assert read_model_info(copy).model_id == identity
    assert read_model_info(tiny_qwen3).model_id != identity
    weights = load_file(copy / "model.safetensors")
    changed = {k: v + 0.5 for k, v in weights.items()}
    save_file(changed, copy / "model.safetensors", metadata={"format": "pt"})
    assert read_model_info(copy).model_id != identity
    edit_json(copy / "config.json", rms_norm_eps=1e-3)
    assert read_model_info(copy).model_id != identity


def test_any_byte_of_the_weights_changed_in_place_makes_another_model(copy: Path) -> None:
    """A disk tier of the old weights must not be reused."""
    file = copy / "model.safetensors"
    identity, content = read_model_info(copy).model_id, file.read_bytes()
    status = file.stat()
    for at in (len(content) - 1, len(content) - 5_001, len(content) // 2 + 1, len(content) // 3):
        with file.open("r+b") as stream:
            stream.seek(at)
            stream.write(bytes([content[at] ^ 1]))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert read_model_info(copy).model_id != identity
        file.write_bytes(content)
    assert read_model_info(copy).model_id == identity


def test_missing_files_are_named(copy: Path, tmp_path: Path) -> None:
    def refused(path: Path, says: str) -> None:
        with pytest.raises(ConfigError, match=f"^model: .*{says}"):
            read_model_info(path)

    refused(tmp_path / "nowhere", "does not exist")
    refused(copy / "config.json", "is a file")
    refused(tmp_path, "not a Hugging Face model directory")
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[:-100])
    refused(copy, "download it again")
    (copy / "model.safetensors").write_bytes(b"nonsense" * 20)
    refused(copy, "not a whole safetensors file")
    (copy / "model.safetensors").unlink()
    refused(copy, "no safetensors weights")
    (copy / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    refused(copy, "1 are missing .part-1")
    for named in (["a"], {"a": 5}, {"a": "../part-1.safetensors"}, {"a": "/part-1.safetensors"}):
        (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
        refused(copy, "does not name files in")
    (copy / "config.json").write_text("{")
    (copy / "model.safetensors").write_bytes(weights)
    refused(copy, "cannot be read as JSON")


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "F13"},
        {"dtype": None},
        {"shape": 5},
        {"shape": [-64, -64]},
        {"shape": [640, 64]},
        {"data_offsets": [-5, 10]},
        {"data_offsets": [5]},
    ],
)
def test_headers_that_no_file_can_have_are_refused(copy: Path, changes: dict[str, Any]) -> None:
    file = copy / "model.safetensors"
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["model.norm.weight"].update(changes)
    written = json.dumps(header).encode()
    file.write_bytes(len(written).to_bytes(8, "little") + written + content[end:])
    with pytest.raises(ConfigError, match=r"^model: .* is not a whole safetensors file \("):
        read_model_info(copy)
