"""Who asks for which prefix, and on what."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from wavepp_worker.model.timed_model import read_timed_model

from bench.order.devices import DEVICES, write_device_dir
from bench.order.traffic import PREFIX, SUFFIX, SuffixTraffic

TOKEN_BYTES = 4


@pytest.mark.parametrize(
    ("unequal", "shares"), [(0.0, (1 / 3, 1 / 3, 1 / 3)), (1.0, (6 / 11, 3 / 11, 2 / 11))]
)
def test_prefixes_are_asked_for_alike_or_the_first_of_them_more_often(
    unequal: float, shares: tuple[float, ...]
) -> None:
    traffic = SuffixTraffic(3, 3, unequal)
    prompts = list(traffic.prompts(400))
    assert {len(prompt) for prompt in prompts} == {TOKEN_BYTES * (PREFIX + SUFFIX)}
    asked = Counter(traffic.prefixes.index(prompt[: TOKEN_BYTES * PREFIX]) for prompt in prompts)
    assert [asked[at] / 400 for at in range(3)] == [pytest.approx(share, abs=0.06) for share in shares]


def test_a_question_takes_a_cpu_0_12_s_and_a_document_2_8_s(tmp_path: Path) -> None:
    device = DEVICES["cpu-like-pp2"]
    model = read_timed_model(write_device_dir("cpu-like-pp2", tmp_path))
    layers = model.layers // device.stages
    assert model.wave_time(layers, [(PREFIX, SUFFIX)]) == pytest.approx(0.12, rel=0.02)
    document = [model.wave_time(layers, [(at, 512)]) for at in range(0, PREFIX, device.wave_tokens)]
    assert sum(document) == pytest.approx(2.8, rel=0.02)
