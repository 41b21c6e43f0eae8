"""Where the tokens of one wave lie in the paged KV pools of layers that share a window."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from wavepp_worker.errors import WaveppError
from wavepp_worker.model.cpu.native_attention import RequestSpans
from wavepp_worker.model.device.cuda_device import to_device


def token_slots(block_table: torch.Tensor, start: int, end: int, block_size: int) -> torch.Tensor:
    """Pool rows of tokens ``[start, end)``: int64 on the CPU.

    Raises:
        WaveppError: the block table is too short.
    """
    table = block_table.cpu()
    _require_blocks(table, start, end, block_size)
    # numpy's small operations take a fifth of torch's time, and a wave may have many requests.
    blocks, offsets = np.divmod(np.arange(start, end), block_size)
    return torch.from_numpy(table.numpy()[blocks] * block_size + offsets)


def _require_blocks(table: torch.Tensor, start: int, end: int, block_size: int) -> None:
    if end > len(table) * block_size:
        raise WaveppError(
            f"tokens [{start}, {end}) need {-(-end // block_size)} blocks of {block_size} but the block table "
            f"has {len(table)}"
        )


class WindowLayout:
    """Where one wave's tokens lie in the pools of layers that keep the same tokens.

    Of a sliding window no more is read than the chunk's first token sees: the blocks before may be others' by now.
    """

    def __init__(
        self,
        tables: list[torch.Tensor],
        starts: list[int],
        lengths: list[int],
        span: int,
        decode: bool,
        block_size: int,
        device: torch.device,
    ) -> None:
        self.tables = tables
        self.span = span
        self._starts = starts
        self._lengths = lengths
        self.firsts = [max(0, start + 1 - span) if span else 0 for start in starts]
        """By request, the first token that is read."""
        self.plans: dict[Any, Any] = {}
        """What kernels prepared for this wave, by the kind of layers that it holds for."""
        self._decode = decode
        self._block_size = block_size
        self._device = device
        self._masks: dict[int | None, torch.Tensor | None] = {}
        self._of_request: dict[int, torch.Tensor] = {}

    @cached_property
    def write_slots(self) -> torch.Tensor:
        """Int64 ``[tokens]``, pool rows that receive the new keys and values.

        Raises:
            WaveppError: a block table is too short.
        """
        return to_device(self.host_write_slots(), self._device)

    @cached_property
    def read_slots(self) -> torch.Tensor | None:
        """Int64, pool rows to gather: ``[sum of those read]``, or ``[chunks * most]`` for decode.

        None when no chunk has a prefix, so that the new keys and values are all there is.
        """
        slots = self.host_read_slots()
        return None if slots is None else to_device(slots, self._device)

    @cached_property
    def read_blocks(self) -> torch.Tensor:
        """Int32, the blocks that are read, request after request."""
        return to_device(self.host_read_blocks(), self._device).to(torch.int32)

    def request_slots(self, request: int) -> torch.Tensor:
        """Int64, pool rows of all of a request's tokens up to the end of its chunk."""
        if request not in self._of_request:
            end = self._starts[request] + self._lengths[request]
            slots = token_slots(self.tables[request], 0, end, self._block_size)
            self._of_request[request] = to_device(slots, self._device)
        return self._of_request[request]

    @cached_property
    def bounds(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Int32 ``[chunks + 1]`` each: where chunks begin and end among the tokens, and among those that are read."""
        return self.as_bounds(to_device(self.host_bounds(), self._device))

    @staticmethod
    def as_bounds(bounds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``bounds`` of ``host_bounds`` on the device."""
        tokens, read = bounds.to(torch.int32).chunk(2)
        return tokens, read

    def host_bounds(self) -> torch.Tensor:
        """``bounds`` on the CPU, int64, one behind the other."""
        return torch.from_numpy(
            np.concatenate([np.cumsum([0, *each]) for each in (self._lengths, self._read)])
        )

    @property
    def _read(self) -> list[int]:
        """By request, how many tokens are read."""
        return [
            start + length - first
            for first, start, length in zip(self.firsts, self._starts, self._lengths, strict=True)
        ]

    @property
    def most_queries(self) -> int:
        return max(self._lengths)

    @property
    def most_keys(self) -> int:
        return max(self._read)

    def host_write_slots(self) -> torch.Tensor:
        """``write_slots`` on the CPU."""
        slots = [
            token_slots(table, start, start + length, self._block_size)
            for table, start, length in zip(self.tables, self._starts, self._lengths, strict=True)
        ]
        return torch.cat(slots)

    def host_read_slots(self) -> torch.Tensor | None:
        """``read_slots`` on the CPU."""
        if not max(self._starts):
            return None
        slots = [
            token_slots(table, first, start + length, self._block_size)
            for table, first, start, length in zip(
                self.tables, self.firsts, self._starts, self._lengths, strict=True
            )
        ]
        if self._decode:
            # Padding repeats a request's own first token: finite whenever its own cache is, and masked anyway.
            longest = max(len(s) for s in slots)
            slots = [torch.cat([s, s[:1].expand(longest - len(s))]) for s in slots]
        return torch.cat(slots)

    def host_read_blocks(self) -> torch.Tensor:
        """``read_blocks`` on the CPU, int64.

        Raises:
            WaveppError: a block table is too short.
        """
        size, parts = self._block_size, []
        for table, first, start, length in zip(
            self.tables, self.firsts, self._starts, self._lengths, strict=True
        ):
            _require_blocks(table, start, start + length, size)
            parts.append(table[first // size : -(-(start + length) // size)])
        return torch.cat(parts)

    def host_places(self) -> torch.Tensor:
        """Int64 on the CPU: what ``place`` wants to know of the requests, one behind the other.

        By request, the first token that is read, and which of the blocks that are read would be that of its token 0.
        """
        _, blocks, _ = self.host_block_bounds()
        firsts = torch.tensor(self.firsts)
        return torch.cat([firsts, blocks[:-1] - firsts // self._block_size])

    def place(
        self,
        blocks: torch.Tensor,
        bounds: torch.Tensor,
        places: torch.Tensor,
        positions: torch.Tensor,
        *,
        read: bool,
    ) -> None:
        """Make the slots on the device, of what a wave brought there; nothing waits for it.

        Args:
            blocks: those of ``host_read_blocks``.
            bounds: those of ``host_bounds``.
            places: those of ``host_places``.
            positions: int64 ``[tokens]`` of the wave.
            read: ``read_slots`` as well.
        """
        firsts, at_zero = places.chunk(2)
        tokens, ends = bounds.chunk(2)

        def slots(requests: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return (
                blocks[at_zero[requests] + at // self._block_size] * self._block_size + at % self._block_size
            )

        def owners(bound: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
            number = torch.arange(count, device=bound.device)
            return number, torch.searchsorted(bound[1:], number, right=True)

        self.write_slots = slots(owners(tokens, sum(self._lengths))[1], positions)
        if not read or not max(self._starts):
            return
        if self._decode:
            # Padding repeats a request's own first token: finite whenever its own cache is, and masked anyway.
            number = torch.arange(self.most_keys, device=blocks.device)
            behind = torch.where(number < ends.diff()[:, None], number, 0)
            requests = torch.arange(len(self._starts), device=blocks.device)[:, None]
            self.read_slots = slots(requests, firsts[:, None] + behind).flatten()
            return
        number, requests = owners(ends, sum(self._read))
        self.read_slots = slots(requests, number - ends[requests] + firsts[requests])

    def host_block_bounds(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Int32 on the CPU.

        Returns:
            ``[chunks + 1]`` where chunks begin and end among the tokens, ``[chunks + 1]`` where their requests do among
            the blocks that are read, and ``[chunks]`` how many tokens the last block of each has.
        """
        size = self._block_size
        ends = [start + length for start, length in zip(self._starts, self._lengths, strict=True)]
        counts = [-(-end // size) - first // size for first, end in zip(self.firsts, ends, strict=True)]
        queries, blocks = (np.cumsum([0, *each], dtype=np.int32) for each in (self._lengths, counts))
        last = np.asarray([(end - 1) % size + 1 for end in ends], dtype=np.int32)
        return torch.from_numpy(queries), torch.from_numpy(blocks), torch.from_numpy(last)

    def host_read_lengths(self) -> torch.Tensor:
        """Int32 ``[chunks]`` on the CPU: how many tokens are read of each request."""
        return torch.tensor(self._read, dtype=torch.int32)

    @cached_property
    def spans(self) -> RequestSpans:
        """Where the kernel finds each request."""
        return RequestSpans.of(self.tables, self._starts, self._lengths)

    def last_tokens(self, requests: list[int]) -> RequestSpans:
        """The same of the last tokens alone of some requests, at least one."""
        tables = [self.tables[request] for request in requests]
        lasts = [self._starts[request] + self._lengths[request] - 1 for request in requests]
        return RequestSpans.of(tables, lasts, [1] * len(requests))

    def decode_mask(self, window: int | None) -> torch.Tensor | None:
        """Bool ``[chunks, 1, 1, most]``: what each decode token attends; None when that is everything."""
        if window not in self._masks:
            ends = torch.tensor(self._starts)[:, None] + 1
            firsts = torch.tensor(self.firsts)[:, None]
            at = firsts + torch.arange(int((ends - firsts).max()))[None]
            mask = at < ends
            if window is not None:
                mask &= at >= ends - window
            self._masks[window] = None if bool(mask.all()) else to_device(mask[:, None, None], self._device)
        return self._masks[window]
