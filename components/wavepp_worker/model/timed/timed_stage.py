"""A pipeline stage that computes nothing: a virtual device whose work ends when the cost model says so.

As on a GPU, ``forward`` and block copies are queued and return at once; the host waits only where it needs
the result. In place of KV each block holds a hash of the prompt up to its last written token, so the answer
is right only if every rank reused, copied and wrote the right blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from wavepp_worker.errors import ConfigError, HandoffMismatch, WaveppError
from wavepp_worker.model.kv.block_regions import BlockRegions
from wavepp_worker.model.stage import NOTHING_PASSED, Activations, Chunk, PagedKV, StageOutput, StateBlocks
from wavepp_worker.model.timed.timed_model import TimedModel
from wavepp_worker.model.timed.virtual_device import Clock, Ending, Queue

_ENTRY_BYTES = 16
_MULTIPLIERS = tuple(np.uint64(m) for m in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xBF58476D1CE4E5B9))


class TimedKV:
    """Implements ``PagedKV`` with 16 bytes a block: tokens written so far, and the hash of the prompt so far.

    What is handed off of a token stands for 16 bytes a layer, and takes no time of the device.
    """

    def __init__(
        self, model: TimedModel, layers: range, num_blocks: int, block_size: int, clock: Clock
    ) -> None:
        self.layers = layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = torch.device("cpu")
        self.bytes_per_token = _ENTRY_BYTES * len(layers)
        self.states: StateBlocks | None = None
        self.spans: tuple[int, ...] = (0,)
        self._model = model
        self._out, self._in = Queue(clock), Queue(clock)
        # Per block: end position and hash, and until when some engine works with it.
        self._entries = np.zeros((num_blocks, 2), np.uint64)
        self._busy_until = np.zeros(num_blocks, np.int64)

    def memory(self, window: int) -> TimedKV:
        del window
        return self

    @property
    def block_bytes(self) -> int:
        return _ENTRY_BYTES

    def hash_before(self, table: NDArray[np.int64], start: int) -> np.uint64:
        """Hash of the prompt's tokens ``[0, start)``.

        Raises:
            WaveppError: the block that should end there holds something else.
        """
        if start == 0:
            return np.uint64(0)
        physical = int(table[(start - 1) // self.block_size])
        end, value = self._entries[physical]
        if int(end) != start:
            raise WaveppError(
                f"a chunk starts at token {start}, but block {physical} holds tokens up to {int(end)}; the "
                "block table is wrong or the block was lost"
            )
        return np.uint64(value)

    def write(self, table: NDArray[np.int64], start: int, length: int, hashes: NDArray[np.uint64]) -> None:
        """Store the ``hashes`` at the end of each block that ``[start, start + length)`` touches."""
        first, end = start // self.block_size, -(-(start + length) // self.block_size)
        blocks = table[first:end]
        ends = (np.arange(first, first + len(blocks)) + 1) * self.block_size
        self._entries[blocks, 0] = np.minimum(ends, start + length)
        self._entries[blocks, 1] = hashes

    def ready(self, tables: Sequence[NDArray[np.int64]]) -> int:
        """When everything in these blocks has been written or copied."""
        return max((int(self._busy_until[table].max()) for table in tables), default=0)

    def occupy(self, tables: Sequence[NDArray[np.int64]], until: int) -> None:
        """Nobody copies these blocks, or copies to them, before ``until``."""
        for table in tables:
            self._busy_until[table] = until

    def export_blocks(self, blocks: torch.Tensor) -> torch.Tensor:
        self._copy(self._out, blocks)
        return torch.from_numpy(self._entries[blocks.numpy()].view(np.uint8))

    def import_blocks(self, blocks: torch.Tensor, payload: torch.Tensor) -> None:
        self._copy(self._in, blocks)
        self._entries[blocks.numpy()] = payload.contiguous().numpy().view(np.uint64)

    def _copy(self, queue: Queue, blocks: torch.Tensor) -> None:
        link = self._model.to_host if queue is self._out else self._model.from_host
        seconds = self._model.copy_time(link, len(self.layers), len(blocks) * self.block_size)
        moved = [blocks.numpy()]
        self.occupy(moved, queue.launch(seconds, after=self.ready(moved)))

    def export_tokens(self, block_table: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """See ``PagedKV``; first what the blocks hold that ``[start, end)`` touches, then zeros."""
        payload = np.zeros(self.bytes_per_token * (end - start), np.uint8)
        entries = self._entries[self._touched(block_table, start, end)]
        payload[: entries.nbytes] = entries.reshape(-1).view(np.uint8)
        return torch.from_numpy(payload)

    def import_tokens(
        self,
        block_table: torch.Tensor,
        start: int,
        end: int,
        layers: range,
        payload: torch.Tensor,
        firsts: Mapping[int, int] = NOTHING_PASSED,
    ) -> None:
        """See ``PagedKV``; ``layers`` may be any of a model's, as all hold the same.

        Raises:
            HandoffMismatch: the payload has another size than these tokens have, or is of blocks of another size.
        """
        blocks = self._touched(block_table, start, end)
        wanted = _ENTRY_BYTES * len(layers) * (end - start)
        if payload.numel() != wanted:
            raise HandoffMismatch(
                f"{end - start} tokens of {len(layers)} layers take {wanted} bytes but the payload has "
                f"{payload.numel()}; both sides must have the same model"
            )
        entries = payload.numpy()[: _ENTRY_BYTES * len(blocks)].view(np.uint64).reshape(-1, 2)
        before = (np.arange(len(blocks)) + start // self.block_size) * self.block_size
        held = entries[:, 0].astype(np.int64)
        after = before + self.block_size
        if np.any(held < np.minimum(after, end)) or np.any(held > after):
            raise HandoffMismatch(
                f"the KV of tokens {start} to {end - 1} came in blocks that do not end where blocks of "
                f"{self.block_size} tokens do; a timed model needs the same block_size on both sides"
            )
        self._entries[blocks] = entries

    def _touched(self, block_table: torch.Tensor, start: int, end: int) -> NDArray[np.int64]:
        return block_table.numpy()[start // self.block_size : -(-end // self.block_size)]

    def block_regions(self, layers: range | None = None) -> BlockRegions:
        return BlockRegions.of([])

    def regions(self) -> list[tuple[int, int]]:
        return []


class TimedStage:
    """Implements ``StageModel`` for layers of a ``TimedModel``.

    The activations are ``ready`` int64 ``[1]`` (when the activations have arrived, monotonic ns), ``before``
    int64 ``[chunks]`` (the prompt's hash where each chunk starts) and ``hashes`` int64 ``[blocks touched]``.
    """

    def __init__(self, model: TimedModel, layers: range, clock: Clock = time.monotonic_ns) -> None:
        """Take ``layers`` of ``model``.

        Raises:
            ConfigError: the model does not have them.
        """
        if not 0 <= layers.start < layers.stop <= model.layers or layers.step != 1:
            raise ConfigError(f"partition: layers {layers} do not exist; the model has {model.layers}")
        self.layers = layers
        self.num_layers = model.layers
        self.vocab_size = model.vocabulary
        self.dtype = self.kv_dtype = torch.bfloat16
        self.attends, self.recurrent = True, False
        self.device = torch.device("cpu")
        self._model = model
        self._clock = clock
        self._compute, self._link = Queue(clock), Queue(clock)

    def make_kv(
        self,
        num_blocks: int,
        block_size: int,
        num_states: int = 0,
        window_blocks: Callable[[int], int] | None = None,
    ) -> TimedKV:
        del num_states
        return TimedKV(self._model, self.layers, num_blocks, block_size, self._clock)

    def forward(self, inputs: torch.Tensor | Activations, chunks: list[Chunk], kv: PagedKV) -> StageOutput:
        """Queue one wave; see ``StageModel``.

        Raises:
            WaveppError: the inputs do not fit the chunks, or a block does not hold what the wave builds on.
        """
        if not isinstance(kv, TimedKV) or kv.layers != self.layers:
            raise WaveppError(f"the stage of layers {self.layers} was given the KV memory of {kv.layers}")
        tables = [
            chunk.block_table.numpy()[: -(-(chunk.start + chunk.length) // kv.block_size)] for chunk in chunks
        ]
        ends = np.cumsum(
            [len(table) - chunk.start // kv.block_size for table, chunk in zip(tables, chunks, strict=True)]
        )
        arrived, before = 0, np.zeros(len(chunks), np.uint64)
        if isinstance(inputs, torch.Tensor):
            of_chunks = _summed_terms(inputs.numpy(), chunks, kv.block_size)
        else:
            arrived = int(inputs["ready"][0])
            of_chunks = np.split(inputs["hashes"].numpy().view(np.uint64), ends[:-1])
        # One after the other: a chunk may go on from blocks that an earlier one of the wave writes.
        for at, (table, chunk) in enumerate(zip(tables, chunks, strict=True)):
            before[at] = kv.hash_before(table, chunk.start)
            if isinstance(inputs, torch.Tensor):
                of_chunks[at] = before[at] + of_chunks[at]
            kv.write(table, chunk.start, chunk.length, of_chunks[at])
        if not isinstance(inputs, torch.Tensor):
            _check_same(before, inputs["before"], chunks)
        hashes = np.concatenate(of_chunks)
        seconds = self._model.wave_time(len(self.layers), [(chunk.start, chunk.length) for chunk in chunks])
        done = self._compute.launch(seconds, after=max(arrived, kv.ready(tables)))
        kv.occupy(tables, done)
        if self.layers.stop == self.num_layers:
            answers = [hashes[end - 1] for chunk, end in zip(chunks, ends, strict=True) if chunk.wants_logits]
            return StageOutput({}, self._logits(answers), Ending(done), seconds)
        tokens = sum(chunk.length for chunk in chunks)
        sending, latency = self._model.hop_times(tokens)
        arrival = self._link.launch(sending, after=done) + round(latency * 1e9)
        activations = {
            "ready": torch.tensor([arrival]),
            "before": torch.from_numpy(before.view(np.int64)),
            "hashes": torch.from_numpy(hashes.view(np.int64)),
        }
        return StageOutput(activations, None, Ending(done), seconds)

    def _logits(self, hashes: list[np.uint64]) -> torch.Tensor:
        logits = torch.zeros(len(hashes), self.vocab_size)
        for row, value in zip(logits, hashes, strict=True):
            row[int(value) % self.vocab_size] = 1.0
        return logits


def expected_token(token_ids: Sequence[int], vocabulary: int) -> int:
    """The most likely token after a prompt."""
    tokens = np.asarray(token_ids, np.int64)
    return int(_terms(tokens, np.arange(len(tokens))).sum(dtype=np.uint64)) % vocabulary


def _terms(tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """What each token adds to the hash of its prompt; depends on its position, so order counts."""
    first, second, third = _MULTIPLIERS
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * first + positions.astype(np.uint64) * second
    mixed ^= mixed >> np.uint64(31)
    mixed *= third
    return mixed ^ (mixed >> np.uint64(29))


def _summed_terms(
    tokens: NDArray[np.int64], chunks: list[Chunk], block_size: int
) -> list[NDArray[np.uint64]]:
    """For each chunk, what it adds to the prompt's hash up to the end of every block that it touches."""
    lengths = [chunk.length for chunk in chunks]
    if len(tokens) != sum(lengths):
        raise WaveppError(f"the wave's chunks add up to {sum(lengths)} tokens but {len(tokens)} came in")
    found, at = [], 0
    for chunk in chunks:
        end = chunk.start + chunk.length
        part = tokens[at : at + chunk.length]
        sums = np.cumsum(_terms(part, np.arange(chunk.start, end)), dtype=np.uint64)
        block_ends = np.arange(chunk.start // block_size + 1, -(-end // block_size) + 1) * block_size
        found.append(sums[np.minimum(block_ends, end) - chunk.start - 1])
        at += chunk.length
    return found


def _check_same(mine: NDArray[np.uint64], sent: torch.Tensor, chunks: list[Chunk]) -> None:
    differing = np.flatnonzero(mine != sent.numpy().view(np.uint64))
    if len(differing):
        chunk = chunks[int(differing[0])]
        raise WaveppError(
            f"this rank and the one before hold different tokens before token {chunk.start} of one prompt; "
            "a block table is wrong or a block was lost"
        )
