"""What somebody is told whose settings are wrong."""

from __future__ import annotations

import pytest
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.protocol.engine_config import EngineConfig


@pytest.mark.parametrize("config", [EngineConfig, DecodeConfig])
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"model": "/m", "max_num_seq": 3},
            "max_num_seq: unknown (did you mean max_num_seqs?)",
        ),
        ({"model": "/m", "zzz": 3}, "zzz: unknown"),
        ({"modle": "/m"}, "model: is required; modle: unknown (did you mean model?)"),
        ({"model": "/m", "threads": 0}, "threads: should be at least 1, not 0"),
        (
            {"model": "/m", "threads": "two", "dtype": "float8"},
            "dtype: should be 'auto', 'float32' or 'bfloat16', not 'float8'; "
            "threads: should be a whole number, not 'two'",
        ),
    ],
)
def test_the_sentence_names_every_wrong_key_and_suggests_one_that_exists(
    config: type[EngineConfig] | type[DecodeConfig], given: dict[str, object], sentence: str
) -> None:
    for make in (lambda: config(**given), lambda: config.model_validate(given)):
        with pytest.raises(ConfigError) as caught:
            make()
        assert str(caught.value) == sentence


def test_numbers_of_ranks_are_one_or_several() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^kv_tokens: should be a whole number, or one per rank such as 32768,24576, not '1e5'$",
    ):
        EngineConfig(model="/m", kv_tokens="1e5")


def test_a_bound_is_written_as_people_write_it() -> None:
    for given, sentence in (
        ({"round_delay": 1e6}, "round_delay: should be at most 10, not 1000000.0"),
        ({"handoff_timeout": "1e-300"}, "handoff_timeout: should be at least 0.1, not 1e-300"),
    ):
        with pytest.raises(ConfigError) as caught:
            EngineConfig(model="/m", **given)  # type: ignore[arg-type]
        assert str(caught.value) == sentence


def test_a_copy_with_changes_is_checked_as_well() -> None:
    config = EngineConfig(model="/m", pp=2)
    assert config.model_copy(update={"threads": 3}) == EngineConfig(model="/m", pp=2, threads=3)
    assert config.model_copy() == config
    with pytest.raises(ConfigError, match=r"^thread: unknown \(did you mean threads\?\)$"):
        config.model_copy(update={"thread": 3})
    with pytest.raises(ConfigError, match=r"^pp: should be a whole number"):
        config.model_copy(update={"pp": "two"})


def test_what_concerns_two_settings_names_both_as_they_were_written() -> None:
    given = {"model": "/m", "kv_tokens": 64, "kv_memory_fraction": 0.1}
    for config in (EngineConfig, DecodeConfig):
        with pytest.raises(
            ConfigError, match=r"^kv_tokens and kv_memory_fraction both say how large the KV pool is; "
        ):
            config(**given)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"^<kv_tokens> and <kv_memory_fraction> both say "):
            config.spelt(given, lambda key: f"<{key}>")
