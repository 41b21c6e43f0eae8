"""Where one NIXL read of a rank's blocks goes: pure address arithmetic, no NIXL."""

from __future__ import annotations

import numpy as np
import torch

from wavepp_worker.errors import HandoffError, HandoffMismatch
from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.handoff.pull_messages import KvRegions
from wavepp_worker.model.stage import PagedKV


def token_runs(start: int, end: int, *blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut tokens ``[start, end)`` wherever a block of one of the sizes begins: int64 starts and lengths."""
    cuts = {start, end}
    for block in blocks:
        cuts.update(range((start // block + 1) * block, end, block))
    edges = np.array(sorted(cuts), dtype=np.int64)
    return edges[:-1], np.diff(edges)


def plan_read(
    message: KvRegions, rank: RankAddress, prompt_tokens: int, kv: PagedKV, table: torch.Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where to read from, where to, and how much: uint64 ``[n]`` addresses, addresses and bytes.

    Args:
        rank: who offers its layers.
        prompt_tokens: by which one knows what decoding sees of windows.
        table: int64, this worker's blocks for the request.

    Raises:
        HandoffMismatch: the rank's regions do not fit this worker's layers, or what decoding sees of the prompt.
        HandoffError: their addresses are damaged.
    """
    block_size, layers = rank.block_size, range(*rank.layers)
    first, last = message.start // block_size, -(-message.end // block_size)
    try:
        theirs = np.frombuffer(message.addresses, dtype="<u8").reshape(last - first, len(message.sizes))
    except ValueError as error:
        raise HandoffError(
            f"request {message.request_id}: tokens {message.start} to {message.end} came with "
            f"{len(message.addresses)} bytes of addresses, which is not one per region and block"
        ) from error
    own_first, own_last = message.start // kv.block_size, -(-message.end // kv.block_size)
    regions = kv.block_regions(layers)
    width = regions.sizes // kv.block_size
    if (
        len(message.sizes) != len(width)
        or (np.array(message.sizes, dtype=np.uint64) != width * block_size).any()
    ):
        raise HandoffMismatch(
            f"request {message.request_id}: the blocks of layers {layers.start} to {layers.stop - 1} have "
            "other shapes than here; both sides must have the same model and dtype"
        )
    firsts = rank.firsts(prompt_tokens)
    seen_from = np.array([firsts.get(span, 0) for span in kv.spans], dtype=np.int64) // block_size
    due = np.arange(first, last)[:, None] >= seen_from[regions.windows]
    if ((theirs != 0) != due).any():
        raise HandoffMismatch(
            f"request {message.request_id}: of tokens {message.start} to {message.end}, rank {rank.rank} offers other "
            "blocks of its windows than decoding sees"
        )
    ours = regions.addresses(table[own_first:own_last].numpy()[None].repeat(len(kv.spans), axis=0))
    starts, lengths = token_runs(message.start, message.end, block_size, kv.block_size)
    sources = theirs[starts // block_size - first] + (starts % block_size).astype(np.uint64)[:, None] * width
    targets = (
        ours[starts // kv.block_size - own_first]
        + (starts % kv.block_size).astype(np.uint64)[:, None] * width
    )
    sizes = lengths.astype(np.uint64)[:, None] * width
    wanted = due[starts // block_size - first]
    return sources[wanted], targets[wanted], sizes[wanted]
