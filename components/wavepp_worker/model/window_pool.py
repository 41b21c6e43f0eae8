"""How many blocks layers with a sliding window get, beside those that keep every token. Pure."""

from __future__ import annotations

REUSABLE_SHARE = 4
"""One block in so many of a pool for all tokens is for windows that nobody holds: where prompts end, and where they
part. Prompts of four windows and more find theirs again as long as their other blocks."""


def window_pool(
    blocks: int, block_size: int, span: int, requests: int, wave_tokens: int
) -> tuple[int, int | None]:
    """Blocks of a pool of one window, and how many of them are set aside for the wave that runs.

    None in place of the latter where the pool is too small for that: requests then reserve all blocks of their prompts.

    Args:
        blocks: of a pool that keeps every token; there are never more.
        span: tokens that a token sees, itself included.
        requests: that may run at once.
        wave_tokens: most tokens of a wave.
    """
    window = -(-span // block_size)
    # Every chunk may begin in a block that is new, and end in one that is not full.
    wave = wave_tokens // block_size + requests
    # One request resumes from a window, and holds one at most between two waves, which need not begin with a block.
    if blocks < 2 * window + 1 + wave:
        return blocks, None
    return min(blocks, most_held(block_size, span, requests, wave_tokens) + blocks // REUSABLE_SHARE), wave


def most_held(block_size: int, span: int, requests: int, wave_tokens: int) -> int:
    """Blocks of one window that requests hold at once at most; see ``window_pool``."""
    window = -(-span // block_size)
    return (requests + 1) * (window + 1) + wave_tokens // block_size + requests
