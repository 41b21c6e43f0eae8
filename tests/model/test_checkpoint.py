from __future__ import annotations

import os
from pathlib import Path

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
    refused(copy, "not a safetensors file")
    (copy / "model.safetensors").unlink()
    refused(copy, "no safetensors weights")
    (copy / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    refused(copy, "1 are missing .part-1")
    (copy / "config.json").write_text("{")
    (copy / "model.safetensors").write_bytes(weights)
    refused(copy, "cannot be read as JSON")
