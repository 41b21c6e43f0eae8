from __future__ import annotations

import json
from pathlib import Path

from wavepp_worker.dynamo.sampling_options import default_sampling, sampling_params
from wavepp_worker.model.sampling_params import SamplingParams


def test_defaults_follow_the_models_generation_config(tmp_path: Path) -> None:
    assert default_sampling(tmp_path) == SamplingParams()
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_p": 0.9}))
    assert default_sampling(tmp_path).temperature == 0.0
    config = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    expected = SamplingParams(temperature=0.6, top_p=0.9, top_k=50, repetition_penalty=1.1)
    assert default_sampling(tmp_path) == expected
    assert sampling_params({}, None, expected) == expected
    assert sampling_params({"temperature": 0.0}, None, expected).temperature == 0.0


def test_shaping_the_draw_asks_for_one() -> None:
    assert sampling_params({"top_p": 0.5}, None, SamplingParams()).temperature == 1.0
    assert sampling_params({"top_p": 0.5, "temperature": 0.0}, None, SamplingParams()).temperature == 0.0


def test_other_spellings_of_the_extremes() -> None:
    assert sampling_params({"top_k": -1}, None, SamplingParams()).top_k == 0
    nothing = sampling_params({"top_p": 0.0, "temperature": 1.0}, None, SamplingParams())
    assert (nothing.top_k, nothing.top_p) == (1, 1.0)


def test_what_the_request_says_wins_over_the_models_defaults() -> None:
    defaults = SamplingParams(temperature=0.6, top_p=0.9, min_p=0.05, repetition_penalty=1.1)
    given = {"top_p": 0.5, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.5, "seed": 0}
    assert sampling_params(given, 3, defaults) == SamplingParams(
        temperature=0.6, top_p=0.5, seed=0, presence_penalty=0.5, logprobs=3
    )
