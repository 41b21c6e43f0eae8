"""The elementwise kernels against the operations of torch that they replace."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb
from wavepp_worker.model.cpu.elementwise import rms_norm, rotate_and_store, silu_times
from wavepp_worker.model.cpu.native_library import computes_on

from tests.support.torch_threads import in_threads

pytestmark = pytest.mark.skipif(
    not computes_on(torch.bfloat16, torch.device("cpu")),
    reason="no compiler at installation, or a CPU without AVX2",
)
WIDTHS = st.sampled_from([1, 15, 16, 40, 64, 257])
DTYPES = st.sampled_from([torch.bfloat16, torch.float32])
ROUNDING = {torch.bfloat16: {"rtol": 2**-6, "atol": 1e-6}, torch.float32: {"rtol": 1e-5, "atol": 1e-6}}
"""Of bfloat16, twice: neighbours are 2**-7 apart."""


def _normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return (2 * torch.randn(*shape)).to(dtype)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.sampled_from([1, 3, 300]),
    width=WIDTHS,
    threads=st.sampled_from([1, 2, 3]),
    dtype=DTYPES,
)
def test_norms_and_activations_are_those_of_torch(
    seed: int, rows: int, width: int, threads: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    x, up = _normal(rows, width, dtype=dtype), _normal(rows, width, dtype=dtype)
    norm = LlamaRMSNorm(width, 1e-5).to(dtype)
    norm.weight.data = _normal(width, dtype=dtype)
    with in_threads(threads):
        torch.testing.assert_close(rms_norm(x, norm.weight, 1e-5), norm(x), **ROUNDING[dtype])
        torch.testing.assert_close(silu_times(4 * x, up), F.silu(4 * x) * up, **ROUNDING[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_activations_of_extreme_numbers_are_those_of_torch(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1e-30, -90.0, 90.0, -3e38, 3e38, torch.inf, -torch.inf, torch.nan]).to(dtype)
    torch.testing.assert_close(
        silu_times(x, torch.ones_like(x)), F.silu(x), equal_nan=True, rtol=2**-7, atol=1e-30
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    tokens=st.sampled_from([1, 5, 200]),
    groups=st.sampled_from([1, 2]),
    each=st.sampled_from([1, 3]),
    dim=st.sampled_from([2, 16, 40, 64, 128]),
    value_dim=st.sampled_from([1, 64]),
    dtype=DTYPES,
)
def test_rotary_embedding_is_that_of_transformers_and_the_pools_have_keys_and_values(
    seed: int, tokens: int, groups: int, each: int, dim: int, value_dim: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    query, key, value = (
        _normal(tokens, groups * each, dim, dtype=dtype),
        _normal(tokens, groups, dim, dtype=dtype),
        _normal(tokens, groups, value_dim, dtype=dtype),
    )
    cos, sin = torch.rand(tokens, dim).to(dtype), torch.rand(tokens, dim).to(dtype)
    keys, values = (torch.zeros(2 * tokens, groups, size).to(dtype) for size in (dim, value_dim))
    slots = torch.randperm(2 * tokens)[:tokens]
    turned, turned_keys = apply_rotary_pos_emb(query, key, cos, sin, unsqueeze_dim=1)
    rotate_and_store(query, key, value, cos, sin, slots, keys, values)
    wanted, wanted_values = torch.zeros_like(keys), torch.zeros_like(values)
    wanted[slots], wanted_values[slots] = turned_keys, value
    torch.testing.assert_close(query, turned, rtol=2**-7, atol=1e-2)
    torch.testing.assert_close(keys, wanted, rtol=2**-7, atol=1e-2)
    assert torch.equal(values, wanted_values)
