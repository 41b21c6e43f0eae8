"""Each way of computing attention against the definition."""

from __future__ import annotations

import pytest
import torch
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.attention import interface
from wavepp_worker.model.attention.interface import paged_attention
from wavepp_worker.model.kv.wave_layout import WaveLayout, running


class Caller(torch.nn.Module):
    layer_idx = 0


def defined(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The textbook, one query at a time in float64: ``[1, heads, queries, dim]``."""
    heads, length, groups, total = q.shape[1], q.shape[2], k.shape[1], k.shape[2]
    out = torch.empty(1, heads, length, v.shape[-1], dtype=torch.float64)
    q, k, v = q.double(), k.double(), v.double()
    for head in range(heads):
        group = head // (heads // groups)
        for i in range(length):
            end = total - length + i + 1
            low = 0 if window is None else max(0, end - window)
            scores = k[0, group, low:end] @ q[0, head, i] * scale
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            if sinks is not None:
                scores = torch.cat([scores, sinks[head : head + 1].double()])
            weights = torch.softmax(scores, 0)[: end - low]
            out[0, head, i] = weights @ v[0, group, low:end]
    return out


def tensors(
    length: int, prefix: int, heads: int = 4, groups: int = 2, dim: int = 16, value_dim: int = 16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length * 1000 + prefix)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    total = length + prefix
    # Keys and values as a gathered pool gives them: heads behind tokens in memory.
    k, v = random(1, total, groups, dim).transpose(1, 2), random(1, total, groups, value_dim).transpose(1, 2)
    return random(1, heads, length, dim), k, v


LENGTHS = [(1, 0), (1, 9), (5, 0), (5, 3), (300, 0), (300, 40), (513, 7)]


@pytest.mark.parametrize(("length", "prefix"), LENGTHS)
@pytest.mark.parametrize("value_dim", [16, 12, 20])
def test_causal(length: int, prefix: int, value_dim: int) -> None:
    q, k, v = tensors(length, prefix, value_dim=value_dim)
    wanted = defined(q, k, v, 0.3)
    ways = [
        interface._causal_cuda(q, k, v, 0.3),
        interface.attend_tiled(q, k, v, 0.3, None, None, None),
    ]
    if value_dim <= 16:
        ways.append(interface._causal_cpu(q, k, v, 0.3))
    for got in ways:
        assert got.shape == wanted.shape
        assert (got - wanted).abs().max() < 1e-5


@pytest.mark.parametrize(("length", "prefix"), LENGTHS)
@pytest.mark.parametrize("window", [None, 1, 8, 260])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, False), (3.0, False), (None, True), (3.0, True)])
def test_windows_caps_and_sinks(
    length: int, prefix: int, window: int | None, softcap: float | None, sinks: bool
) -> None:
    q, k, v = tensors(length, prefix, groups=1, heads=2)
    sink = torch.tensor([0.5, -2.0]) if sinks else None
    got = interface.attend_tiled(q, k, v, 0.3, window, softcap, sink)
    assert (got - defined(q, k, v, 0.3, window, softcap, sink)).abs().max() < 1e-5


@pytest.mark.parametrize("window", [None, 3, 30])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, False), (3.0, True)])
def test_decode_batch(window: int | None, softcap: float | None, sinks: bool) -> None:
    starts = [4, 40, 11]
    longest = max(starts) + 1
    singles = [tensors(1, start) for start in starts]
    sink = torch.tensor([0.5, -2.0, 1.0, 0.0]) if sinks else None
    keys, values = torch.full((2, 3, 2, longest, 16), 1e3)
    for i, (_, k, v) in enumerate(singles):
        keys[i, :, : starts[i] + 1], values[i, :, : starts[i] + 1] = k[0], v[0]
    query = torch.cat([q for q, _, _ in singles], 2)
    wave = WaveLayout(starts, [1] * 3, True, torch.tensor([starts]), [], 1)
    with running(wave):
        out, _ = paged_attention(
            Caller(), query, keys, values, None, 0.3, sliding_window=window, softcap=softcap, s_aux=sink
        )
    assert out.shape == (1, 3, 4, 16)
    for i, (q, k, v) in enumerate(singles):
        wanted = defined(q, k, v, 0.3, window, softcap, sink)
        assert (out[0, i] - wanted[0, :, 0]).abs().max() < 1e-5


@pytest.mark.parametrize("given", [{"position_bias": torch.zeros(1)}, {"attention_mask": torch.zeros(1)}])
def test_what_it_cannot_do_is_refused(given: dict[str, torch.Tensor]) -> None:
    q, k, v = tensors(2, 0)
    mask = given.pop("attention_mask", None)
    with pytest.raises(WaveppError, match=r"Caller needs .* which paged attention does not support"):
        paged_attention(Caller(), q, k, v, mask, **given)
