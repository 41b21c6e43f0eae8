"""What a model directory tells before anything is loaded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.kv.layer_cache import layer_caches
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.model_shape import (
    ModelShape,
    check_served_model,
    has_chat_template,
    read_model_shape,
)

from tests.support.graph_process import REPOSITORY


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def change(file: Path, **values: object) -> None:
    said = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))


def test_sizes_are_those_that_a_load_finds(model: Path) -> None:
    shape, info = read_model_shape(model), read_model_info(model)
    said = json.loads((model / "config.json").read_text())
    assert shape == ModelShape(
        info.num_layers, info.context_length, "float32", has_chat_template=True, caches=layer_caches(said.get)
    )
    kv = 2 * said["num_key_value_heads"] * said["hidden_size"] // said["num_attention_heads"]
    assert (len(shape.caches), shape.kv_numbers) == (info.num_layers, kv)
    change(
        model / "config.json",
        num_hidden_layers=None,
        max_position_embeddings=None,
        num_key_value_heads=None,
    )
    assert read_model_shape(model) == ModelShape(None, None, "float32", has_chat_template=True)


def test_a_timed_model_has_sizes_too() -> None:
    shape = read_model_shape(REPOSITORY / "bench/models/glm-5.2-pp4")
    assert shape.num_layers == read_model_info(REPOSITORY / "bench/models/glm-5.2-pp4").num_layers
    assert not shape.has_chat_template


@pytest.mark.parametrize("layers", [0, -3, "six", True])
def test_sizes_that_are_none(layers: object, model: Path) -> None:
    change(model / "config.json", num_hidden_layers=layers)
    with pytest.raises(ConfigError, match=r"^model: .*config\.json says num_hidden_layers: "):
        read_model_shape(model)


def test_weights_that_were_cut_off_are_noticed_by_their_header(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(
        ConfigError, match=r"^model: .* is not a whole safetensors file .*; download it again"
    ):
        read_model_shape(model)


def test_a_name_on_hugging_face_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"^model: there is no directory org/some-7B here, .*hf download org/some-7B"
    ):
        read_model_shape(Path("org/some-7B"))
    with pytest.raises(ConfigError, match=r"^model: /org/some-7B does not exist"):
        read_model_shape(Path("/org/some-7B"))


def test_chat_templates_are_in_a_file_or_in_the_tokenizers_configuration(model: Path) -> None:
    assert has_chat_template(model)
    change(model / "tokenizer_config.json", chat_template=None)
    assert not has_chat_template(model)
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert has_chat_template(model)
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").unlink()
    assert not has_chat_template(model)


def test_a_tokenizer_that_cannot_be_loaded_is_refused(model: Path) -> None:
    assert check_served_model(model) == read_model_shape(model)
    other = model.with_name("other")
    shutil.copytree(model, other)
    (other / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(
        ConfigError, match=r"^model: .*/other/tokenizer\.json cannot be read as a tokenizer \("
    ):
        check_served_model(other)
    (other / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"^model: .* has no tokenizer\.json, which the frontend needs"):
        check_served_model(other)


def test_a_timed_model_is_served_without_a_tokenizer() -> None:
    model = REPOSITORY / "bench/models/glm-5.2-pp4"
    assert check_served_model(model) == read_model_shape(model)


def test_a_look_loads_no_tensor_library(tiny_llama: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from wavepp_worker.dynamo.args import AggArgs; "
        "from wavepp_worker.model.model_shape import check_served_model; "
        f"model = Path({str(tiny_llama)!r}); "
        "AggArgs.parse(['--model', str(model)]).check(check_served_model(model)); "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
