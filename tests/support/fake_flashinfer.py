"""FlashInfer's attention over paged KV as its documentation has it, over CPU tensors, on a device behind the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from wavepp_worker.model.gpu import flashinfer_attention, flashinfer_plans
from wavepp_worker.model.gpu.flashinfer_attention import FlashInfer
from wavepp_worker.model.gpu.flashinfer_latent import FlashInferLatent


class Behind:
    """A device: it does what it is told in order, each thing when ``lag`` more have been asked for.

    Attributes:
        wrappers: made so far.
        plans: made so far.
        ignores_windows: it computes something else than it shall.
    """

    def __init__(self, patch: pytest.MonkeyPatch, lag: int = 0) -> None:
        self.lag = lag
        self.wrappers = 0
        self.plans = 0
        self.ignores_windows = False
        self._queue: deque[Callable[[], None]] = deque()
        patch.setattr(torch.cuda, "current_stream", lambda device: self)
        patch.setattr(flashinfer_plans, "moment", lambda stream: _Moment(self))
        patch.setattr(flashinfer_attention, "_DIMS", (8, 16, 64))

    def flashinfer(self, dtype: torch.dtype = torch.float32, *, latent: bool = False) -> FlashInfer:
        return FlashInfer(
            torch.device("cpu"), dtype, lambda: _Wrapper(self), self.latent(dtype) if latent else None
        )

    def latent(self, dtype: torch.dtype = torch.float32) -> FlashInferLatent:
        return FlashInferLatent(torch.device("cpu"), dtype, lambda: _LatentWrapper(self))

    def ask(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        while len(self._queue) > self.lag:
            self.work()

    def work(self) -> bool:
        """Do the next thing, if there is any."""
        if not self._queue:
            return False
        self._queue.popleft()()
        return True

    def finish(self) -> None:
        while self.work():
            pass


class _Moment:
    """Of a stream; whoever asks for it lets the device go on."""

    def __init__(self, device: Behind) -> None:
        self._device, self._there = device, False
        device.ask(self._arrive)

    def _arrive(self) -> None:
        self._there = True

    def query(self) -> bool:
        if not self._there:
            self._device.work()
        return self._there


class _Wrapper:
    def __init__(self, device: Behind) -> None:
        device.wrappers += 1
        self._device = device
        self._page_locked: tuple[Any, ...] = ()
        self._there: tuple[Any, ...] = ()

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        window_left: int,
        q_data_type: torch.dtype,
    ) -> None:
        given = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        requests = len(paged_kv_last_page_len)
        assert {each.dtype for each in given} == {torch.int32}
        assert len(qo_indptr) == len(paged_kv_indptr) == requests + 1
        assert len(paged_kv_indices) == int(paged_kv_indptr[-1])
        assert bool(((paged_kv_last_page_len > 0) & (paged_kv_last_page_len <= page_size)).all())
        assert bool((paged_kv_indices >= 0).all()), "a block that is there no more"
        assert causal
        assert num_qo_heads % num_kv_heads == 0
        self._expects = (num_qo_heads, num_kv_heads, head_dim_qk, page_size, q_data_type)
        self._device.plans += 1
        left = -1 if self._device.ignores_windows else window_left
        self._page_locked = (*given, sm_scale, left)
        self._device.ask(self._copy)

    def _copy(self) -> None:
        # As the next plan may have written it meanwhile.
        self._there = self._page_locked

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        keys, values = paged_kv_cache
        heads, groups, dim, size, dtype = self._expects
        assert q.is_contiguous()
        assert (q.shape[1:], q.dtype) == ((heads, dim), dtype)
        assert keys.shape == values.shape == (len(keys), size, groups, dim)
        assert keys.is_contiguous()
        out = torch.full_like(q, float("nan"))
        self._device.ask(lambda: self._compute(q, keys, values, out))
        return out

    def _compute(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
        queries, blocks, indices, last, scale, left = self._there
        size, repeated = keys.shape[1], q.shape[1] // keys.shape[2]
        for n in range(len(last)):
            own = indices[blocks[n] : blocks[n + 1]].long()
            total = (len(own) - 1) * size + int(last[n])
            k, v = (
                pool[own].flatten(0, 1)[:total].transpose(0, 1).repeat_interleave(repeated, 0).float()
                for pool in (keys, values)
            )
            rows = slice(int(queries[n]), int(queries[n + 1]))
            asked = q[rows].transpose(0, 1).float()
            i = torch.arange(asked.shape[1])[:, None] + total - asked.shape[1]
            j = torch.arange(total)[None]
            seen = (j <= i) & ((j >= i - left) if left >= 0 else torch.tensor(True))
            scores = (asked @ k.transpose(1, 2) * scale).masked_fill(~seen, float("-inf"))
            out[rows] = (scores.softmax(-1) @ v).transpose(0, 1).to(out.dtype)


class _LatentWrapper:
    """``BatchMLAPagedAttentionWrapper``: all heads read a latent and a rotated key of each token."""

    def __init__(self, device: Behind) -> None:
        device.wrappers += 1
        self._device = device
        self._page_locked: tuple[Any, ...] = ()
        self._there: tuple[Any, ...] = ()

    def plan(
        self,
        *,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_len_arr: torch.Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        given = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        assert {each.dtype for each in given} == {torch.int32}
        assert len(qo_indptr) == len(kv_indptr) == len(kv_len_arr) + 1
        assert len(kv_indices) == int(kv_indptr[-1])
        assert torch.equal(kv_indptr.diff(), -(-kv_len_arr // page_size))
        assert causal
        assert q_data_type == kv_data_type
        self._expects = (num_heads, head_dim_ckv, head_dim_kpe, page_size, q_data_type)
        self._device.plans += 1
        self._page_locked = (*given, sm_scale)
        self._device.ask(self._copy)

    def _copy(self) -> None:
        self._there = self._page_locked

    def run(
        self, q_nope: torch.Tensor, q_pe: torch.Tensor, ckv_cache: torch.Tensor, kpe_cache: torch.Tensor
    ) -> torch.Tensor:
        heads, rank, rotary, size, dtype = self._expects
        assert (q_nope.shape[1:], q_pe.shape[1:], q_nope.dtype) == ((heads, rank), (heads, rotary), dtype)
        assert ckv_cache.shape == (len(ckv_cache), size, rank)
        assert kpe_cache.shape == (len(ckv_cache), size, rotary)
        assert all(each.is_contiguous() for each in (q_nope, q_pe, ckv_cache, kpe_cache))
        out = torch.full_like(q_nope, float("nan"))
        asked = torch.cat([q_nope, q_pe], -1)
        self._device.ask(lambda: self._compute(asked, ckv_cache, kpe_cache, out))
        return out

    def _compute(
        self, asked: torch.Tensor, latents: torch.Tensor, rotary: torch.Tensor, out: torch.Tensor
    ) -> None:
        queries, blocks, indices, lengths, scale = self._there
        if self._device.ignores_windows:
            scale *= 1.5
        for n, total in enumerate(lengths.tolist()):
            own = indices[blocks[n] : blocks[n + 1]].long()
            values, turned = (pool[own].flatten(0, 1)[:total].float() for pool in (latents, rotary))
            rows = slice(int(queries[n]), int(queries[n + 1]))
            query = asked[rows].transpose(0, 1).float()
            i = torch.arange(query.shape[1])[:, None] + total - query.shape[1]
            scores = query @ torch.cat([values, turned], -1).T * scale
            scores = scores.masked_fill(torch.arange(total)[None] > i, float("-inf"))
            out[rows] = (scores.softmax(-1) @ values).transpose(0, 1).to(out.dtype)
