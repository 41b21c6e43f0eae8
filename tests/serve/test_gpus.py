from __future__ import annotations

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.gpus import Allotment, visible_gpus


@pytest.mark.parametrize(
    ("chosen", "names"), [("", []), ("3", ["3"]), (" 1, GPU-5,,7 ", ["1", "GPU-5", "7"])]
)
def test_what_is_chosen_outside_is_what_there_is(
    monkeypatch: pytest.MonkeyPatch, chosen: str, names: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert visible_gpus() == names


def test_without_the_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", "")
    assert visible_gpus() == []


def test_each_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    gpus = Allotment()
    assert [gpus.take(count, "A") for count in (0, 2)] == [[], ["0", "1"]]
    with pytest.raises(ConfigError, match=r"^B: 2 more GPUs are asked for, but of the 3 .* 1 are left"):
        gpus.take(2, "B")
    assert gpus.take(1, "B") == ["2"]
    gpus.give_back(["0"])
    assert gpus.take(1, "C") == ["0"]
