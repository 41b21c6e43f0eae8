"""The kernel that reads KV pages in place, against the definition in float32."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.model.cpu.native_attention import RequestSpans, attend_in_place, reads_in_place

from tests.support.torch_threads import in_threads

CPU = torch.device("cpu")
needs_kernel = pytest.mark.skipif(
    not reads_in_place(torch.bfloat16, CPU, 16, 16),
    reason="no compiler when this was installed, or a CPU without AVX2",
)
DTYPES = [torch.bfloat16, torch.float32]
# Of bfloat16, weights and results are rounded to 8 bits each.
ROUNDING = {torch.bfloat16: {"rtol": 0.01, "atol": 0.02}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}


@dataclass(frozen=True)
class Wave:
    """A wave's tensors: pools whose rows no block table names hold infinities."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: list[torch.Tensor]
    starts: list[int]
    lengths: list[int]
    block: int

    def attend(self, scale: float, window: int | None) -> torch.Tensor:
        spans = RequestSpans.of(self.tables, self.starts, self.lengths)
        return attend_in_place(self.query, self.keys, self.values, spans, self.block, scale, window)[0]

    def defined(self, scale: float, window: int | None) -> torch.Tensor:
        """``[tokens, heads, value dim]``, float32."""
        each, at, parts = self.query.shape[1] // self.keys.shape[1], 0, []
        for table, start, length in zip(self.tables, self.starts, self.lengths, strict=True):
            rows = (table[:, None] * self.block + torch.arange(self.block)).flatten()[: start + length]
            keys, values = (
                pool[rows].float().repeat_interleave(each, 1) for pool in (self.keys, self.values)
            )
            query = self.query[0, :, at : at + length].float()
            at += length
            scores = torch.einsum("hqd,khd->hqk", query, keys) * scale
            own, other = torch.arange(start, start + length)[:, None], torch.arange(start + length)[None]
            seen = other <= own if window is None else (other <= own) & (other > own - window)
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            parts.append(torch.einsum("hqk,khd->qhd", weights, values))
        return torch.cat(parts)


def drawn(
    seed: int,
    spans: list[tuple[int, int]],
    block: int = 16,
    groups: int = 2,
    each: int = 2,
    dim: int = 32,
    value_dim: int = 32,
    dtype: torch.dtype = torch.bfloat16,
) -> Wave:
    """``spans``: start and length of each chunk."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-(start + length) // block) for start, length in spans]
    order = torch.randperm(sum(counts) + 3, generator=generator)
    tables = list(order[: sum(counts)].split(counts))
    pools = []
    for width in (dim, value_dim):
        pool = torch.full(((sum(counts) + 3) * block, groups, width), float("inf"), dtype=dtype)
        for table, (start, length) in zip(tables, spans, strict=True):
            rows = (table[:, None] * block + torch.arange(block)).flatten()[: start + length]
            pool[rows] = torch.randn(len(rows), groups, width, generator=generator).to(dtype)
        pools.append(pool)
    query = torch.randn(1, sum(n for _, n in spans), groups * each, dim, generator=generator).to(dtype)
    starts, lengths = [start for start, _ in spans], [length for _, length in spans]
    return Wave(query.transpose(1, 2), pools[0], pools[1], tables, starts, lengths, block)


SPAN = st.tuples(
    st.sampled_from([0, 1, 15, 16, 255, 256, 300, 700]), st.sampled_from([1, 2, 7, 33, 256, 257, 300])
)


@needs_kernel
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    spans=st.lists(SPAN, min_size=1, max_size=4),
    block=st.sampled_from([1, 3, 16, 32, 1000]),
    groups=st.integers(1, 3),
    each=st.sampled_from([1, 2, 3, 7, 8, 16]),
    dim=st.sampled_from([16, 48, 64, 80, 128, 256]),
    value_dim=st.sampled_from([16, 64, 80, 128]),
    window=st.sampled_from([None, 1, 5, 256, 300, 5000]),
    threads=st.sampled_from([1, 2, 5]),
    dtype=st.sampled_from(DTYPES),
)
def test_it_computes_what_attention_is_and_reads_nothing_else(
    seed: int,
    spans: list[tuple[int, int]],
    block: int,
    groups: int,
    each: int,
    dim: int,
    value_dim: int,
    window: int | None,
    threads: int,
    dtype: torch.dtype,
) -> None:
    wave = drawn(seed, spans, block, groups, each, dim, value_dim, dtype)
    with in_threads(threads):
        got = wave.attend(dim**-0.5, window)
    wanted = wave.defined(dim**-0.5, window)
    torch.testing.assert_close(got.float(), wanted, **ROUNDING[dtype])


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 40.0])
def test_scores_of_any_size_become_weights(scale: float, dtype: torch.dtype) -> None:
    wave = drawn(3, [(300, 40)], dtype=dtype)
    torch.testing.assert_close(
        wave.attend(scale, None).float(), wave.defined(scale, None), rtol=0.01, atol=0.03
    )


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(
    ("groups", "each", "dim"), [(2, 2, 32), (3, 1, 128), (2, 4, 64), (1, 8, 80), (1, 16, 48)]
)
def test_a_token_gets_the_same_bits_however_its_request_is_cut_and_whoever_is_beside_it(
    groups: int, each: int, dim: int, window: int | None, dtype: torch.dtype
) -> None:
    whole = drawn(1, [(0, 700)], 16, groups, each, dim, dim, dtype)
    expected = whole.attend(0.2, window)
    stranger = drawn(2, [(90, 45)], 16, groups, each, dim, dim, dtype)
    at = 0
    for length in (1, 6, 250, 256, 187):
        keys, values = (
            torch.cat([ours, theirs])
            for ours, theirs in ((whole.keys, stranger.keys), (whole.values, stranger.values))
        )
        beside = stranger.tables[0] + len(whole.keys) // 16
        wave = Wave(
            torch.cat([stranger.query, whole.query[:, :, at : at + length]], 2),
            keys,
            values,
            [beside, whole.tables[0]],
            [90, at],
            [45, length],
            16,
        )
        assert torch.equal(wave.attend(0.2, window)[45:], expected[at : at + length]), at
        at += length
    for last in (255, 256, 257, 699):
        alone = Wave(
            whole.query[:, :, last : last + 1], whole.keys, whole.values, whole.tables, [last], [1], 16
        )
        assert torch.equal(alone.attend(0.2, window), expected[last : last + 1]), last


@needs_kernel
@pytest.mark.parametrize("of", ["query", "keys"])
def test_numbers_below_the_least_of_full_precision_count_as_0_in_products(of: str) -> None:
    """As floats they would take a hundred times as long."""
    wave = drawn(8, [(300, 40)])
    wave.query.fill_(1e-39 if of == "query" else 1e38)
    wave.keys.mul_(1e-39 if of == "keys" else 1e37)
    got = wave.attend(1.0, None)
    wave.query.zero_()
    wave.keys.zero_()
    assert torch.equal(got, wave.attend(1.0, None))


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_a_window_has_passed_may_be_anybodys_and_no_number(value: float, dtype: torch.dtype) -> None:
    wave = drawn(5, [(300, 40), (90, 7)], dtype=dtype)
    expected = wave.attend(0.2, 100)
    strange = min({*range(len(wave.keys) // 16)} - {*torch.cat(wave.tables).tolist()})
    wave.keys[strange * 16 :][:16] = wave.values[strange * 16 :][:16] = value
    wave.tables[0][: (300 + 1 - 100) // 16] = strange
    assert torch.equal(wave.attend(0.2, 100), expected)


@needs_kernel
def test_queries_may_lie_in_memory_as_they_come() -> None:
    wave = drawn(4, [(20, 30)])
    expected = wave.attend(0.2, None)
    heads_first = Wave(wave.query.contiguous(), *list(vars(wave).values())[1:])
    apart = torch.empty(*wave.query.shape, 2, dtype=torch.bfloat16)[..., 0].copy_(wave.query)
    scattered = Wave(apart, *list(vars(wave).values())[1:])
    assert torch.equal(heads_first.attend(0.2, None), expected)
    assert torch.equal(scattered.attend(0.2, None), expected)


@needs_kernel
@pytest.mark.parametrize("of", ["keys", "values"])
def test_a_block_that_was_not_written_is_no_number_in_who_reads_it_and_in_nobody_before(of: str) -> None:
    """Float32, as tests that poison what is unwritten use it."""
    wave = drawn(6, [(300, 40)], dtype=torch.float32)
    pool: torch.Tensor = getattr(wave, of)
    pool[wave.tables[0][320 // 16] * 16] = torch.nan
    got = wave.attend(0.2, None)
    # Tokens of one register tile multiply each other's values, those not seen by 0.
    assert got[: 20 - 6].isfinite().all()
    assert got[20:].isnan().all()


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_key_that_is_no_number_is_none_in_who_sees_it_and_in_nobody_else(
    value: float, dtype: torch.dtype
) -> None:
    wave = drawn(6, [(300, 40)], dtype=dtype)
    wave.keys[wave.tables[0][320 // 16] * 16] = value
    got = wave.attend(0.2, None)
    assert got[:20].isfinite().all()
    assert got[20:].isnan().all()


def test_other_types_and_sizes_go_another_way() -> None:
    assert not reads_in_place(torch.float64, CPU, 64, 64)
    assert not reads_in_place(torch.bfloat16, torch.device("cuda"), 64, 64)
    assert not reads_in_place(torch.bfloat16, CPU, 24, 64)
    assert not reads_in_place(torch.bfloat16, CPU, 64, 20)
