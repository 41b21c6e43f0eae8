"""What a model's own file may say."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.generation_config import read_generation_config


def test_what_says_nothing_is_left_out(tmp_path: Path) -> None:
    assert read_generation_config(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text('{"top_k": null, "temperature": 0.5, "bos": "x"}')
    assert read_generation_config(tmp_path) == {"temperature": 0.5, "bos": "x"}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ('{"do_sample": true, "temperature": "hot"}', "temperature in {} should be a number, not 'hot'"),
        ('{"repetition_penalty": [1]}', "repetition_penalty in {} should be a number, not [1]"),
        ("{", "{} cannot be read as JSON"),
    ],
)
def test_a_generation_config_that_cannot_be_used_is_named(tmp_path: Path, said: str, sentence: str) -> None:
    file = tmp_path / "generation_config.json"
    file.write_text(said)
    with pytest.raises(ConfigError) as caught:
        read_generation_config(tmp_path)
    assert str(caught.value).startswith("model: " + sentence.replace("{}", str(file)))
