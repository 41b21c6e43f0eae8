"""What ``bench.profile`` counts as what."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from wavepp_worker.model.cpu.fused_decoder_layers import FusedDecoderLayers
from wavepp_worker.model.cpu.native_linear import MOST_FEW, make_native, takes_many

from bench.profile import kinds
from bench.profile.kinds import ELEMENTWISE, kind_of
from bench.profile.ranks import times_of
from bench.vllm.cells import Traffic
from tests.support.tiny_models import make_model
from tests.support.torch_threads import in_threads


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "matmul"),
        ("wavepp_linear", "matmul"),
        ("wavepp_paged_attention", "attention"),
        ("aten::index_copy_", "gather, KV write"),
        ("aten::silu", ELEMENTWISE),
        ("aten::view", None),
        ("cudaLaunchKernel", None),
    ],
)
def test_every_operation_is_of_one_kind(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(("tokens", "apart"), [(MOST_FEW, False), (MOST_FEW + 1, True)])
def test_layers_of_many_tokens_are_taken_apart_under_the_profiler_alone(
    tokens: int, apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, they would be one line of the table; where no profiler looks, time is taken of what a rank runs."""
    make_native(layer := nn.Linear(64, 128).bfloat16())
    if not takes_many(layer):
        pytest.skip("here layers of many tokens are never computed in one call")
    computed: list[int] = []
    compute = FusedDecoderLayers._compute

    def counting(self: FusedDecoderLayers, hidden: torch.Tensor, *given: Any) -> torch.Tensor:
        computed.append(hidden.shape[1])
        return compute(self, hidden, *given)

    monkeypatch.setattr(FusedDecoderLayers, "_compute", counting)
    monkeypatch.setattr(kinds, "RUNS", 2)
    # Kernels that are recorded once stay so in this process.
    monkeypatch.setattr(kinds, "_kernels_recorded", nullcontext)
    model, joined = make_model(tmp_path, "llama", intermediate_size=128), FusedDecoderLayers._most_tokens
    with in_threads(1):
        kinds.kinds(model, range(2), [(0, tokens, True)], "bfloat16", 16, 1)
    assert computed == [tokens] * (3 + 2 * (1 if apart else 2))
    assert FusedDecoderLayers._most_tokens is joined


def _slice(rank: int, name: str, milliseconds: float, **arguments: Any) -> dict[str, Any]:
    place = {"ph": "X", "cat": "loop", "pid": rank + 1, "ts": 0.0, "dur": 1000 * milliseconds}
    return {**place, "name": name, "args": arguments}


def test_a_ranks_time_is_divided_and_its_median_wave_found() -> None:
    def forward(milliseconds: float, tokens: int, *spans: str) -> dict[str, Any]:
        requests = [f"timed-{number}-77" for number in range(len(spans))]
        shown = {"spans": list(spans), "requests": requests, "tokens": tokens}
        return _slice(0, "forward timed-0-77 abc", milliseconds, **shown)

    events = [
        forward(1, 99, "0 to 99"),
        forward(3, 10, "0 to 8", "4 to 6"),
        forward(9, 9, "0 to 9"),
        {**_slice(0, "wait", 800), "ts": -800_000.0},
        _slice(0, "wait", 5),
        _slice(1, "receive", 7),
        {"ph": "M"},
    ]
    traffic = Traffic(2, [], [[0] * 10, [0] * 6])
    first, second = times_of(events, 2, 0.02, traffic)
    assert first.waves == 3
    assert first.loop["forward"] == pytest.approx(0.013)
    assert first.loop["waits for work"] == pytest.approx(0.005)
    assert first.loop["messages, turns"] == pytest.approx(0.002)
    assert second.loop["waits for the neighbour"] == pytest.approx(0.007)
    assert first.spans == [(0, 8, False), (4, 2, True)]


def test_of_waves_of_a_size_the_one_with_the_median_context_is_shown() -> None:
    """Else it would be any: nearly all waves of long prompts are full."""
    events = [
        _slice(0, "forward", 1, spans=[span], requests=["timed-0-7"], tokens=512)
        for span in ("1536 to 2048", "0 to 512", "1024 to 1536", "512 to 1024", "0 to 512")
    ]
    (rank,) = times_of(events, 1, 0.02, Traffic(1, [], [[0] * 2048]))
    assert rank.spans == [(512, 512, False)]
