"""Who asks for which prefix, and on what."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from wavepp_worker.model.timed.timed_model import read_timed_model

from bench.order.devices import DEVICES, write_device_dir
from bench.order.traffic import PREFIX, SUFFIX, MovingTraffic, Strangers, SuffixTraffic

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


def test_so_many_share_nothing() -> None:
    prompts = list(SuffixTraffic(3, 3, strangers=Strangers(0.25, 100)).prompts(400))
    sizes = Counter(len(prompt) // TOKEN_BYTES for prompt in prompts)
    assert sizes.keys() == {100, PREFIX + SUFFIX}
    assert sizes[100] / 400 == pytest.approx(0.25, abs=0.06)


def test_one_prefix_is_asked_for_after_another_but_by_stragglers() -> None:
    traffic = MovingTraffic(3, 5, 0.3, 2, 64, 8, Strangers(0.2, 100))
    prompts = list(traffic.prompts(400))
    asked = [
        None if len(prompt) == TOKEN_BYTES * 100 else traffic.prefixes.index(prompt[: TOKEN_BYTES * 64])
        for prompt in prompts
    ]
    assert asked.count(None) / 400 == pytest.approx(0.2, abs=0.06)
    newest, late = -1, 0
    for at in asked:
        if at is not None and at >= newest:
            newest = at
        elif at is not None:
            late += 1
            assert newest - at in (1, 2, 3), "of the newest nobody may have asked yet"
    assert late / 400 == pytest.approx(0.3, abs=0.06)
    assert all(asked.count(at) >= 5 for at in range(newest - 1))


def test_a_question_takes_a_cpu_0_12_s_and_a_document_2_8_s(tmp_path: Path) -> None:
    device = DEVICES["cpu-like-pp2"]
    model = read_timed_model(write_device_dir("cpu-like-pp2", tmp_path))
    layers = model.layers // device.stages
    assert model.wave_time(layers, [(PREFIX, SUFFIX)]) == pytest.approx(0.12, rel=0.02)
    document = [model.wave_time(layers, [(at, 512)]) for at in range(0, PREFIX, device.wave_tokens)]
    assert sum(document) == pytest.approx(2.8, rel=0.02)
