from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.stage_loader import load_stage
from wavepp_worker.model.timed.timed_model import write_timed_model

from tests.support.timed_models import VOCABULARY, timed_model


def test_a_timed_directory_is_a_model(tmp_path: Path) -> None:
    directory = write_timed_model(tmp_path / "model", timed_model(speed=20.0))
    info = read_model_info(directory)
    assert (info.num_layers, info.vocab_size, info.context_length) == (8, VOCABULARY, 100_000)
    same = read_model_info(write_timed_model(tmp_path / "faster", timed_model(speed=90.0)))
    other = read_model_info(write_timed_model(tmp_path / "other", timed_model(kv_bytes=11)))
    assert info.model_id == same.model_id != other.model_id
    assert load_stage(directory, range(2, 5), torch.float32, "cpu").layers == range(2, 5)
    with pytest.raises(ConfigError, match=r"partition: layers .* do not exist; the model has 8"):
        load_stage(directory, range(2, 9), torch.float32, "cpu")


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda fields: fields.pop("layers"), "missing required field `layers`"),
        (lambda fields: fields.update(layers=0), r"Expected `int` >= 1 - at `\$.layers`"),
        (
            lambda fields: fields.update(token_seconds="fast"),
            r"Expected `float`, got `str` - at `\$.token_seconds`",
        ),
        (lambda fields: fields["hop"].update(bandwidth=0), r"`\$.hop.bandwidth`"),
        (lambda fields: fields.update(spede=3), "unknown field `spede`"),
        (lambda fields: fields.update(speed=-1), r"`\$.speed`"),
    ],
)
def test_errors_in_timed_json_are_sentences(
    tmp_path: Path, break_it: Callable[[dict[str, Any]], Any], said: str
) -> None:
    fields = msgspec.to_builtins(timed_model())
    break_it(fields)
    (tmp_path / "timed.json").write_bytes(msgspec.json.encode(fields))
    with pytest.raises(ConfigError, match=f"model: .*timed.json does not describe a timed model .*{said}"):
        read_model_info(tmp_path)
