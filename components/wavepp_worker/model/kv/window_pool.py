"""How many blocks layers with a sliding window get, beside those that keep every token. Pure."""

from __future__ import annotations

from collections.abc import Mapping

REUSABLE_SHARE = 4
"""One block in so many of a pool for all tokens is for windows that nobody holds: where prompts end, and where they
part. Prompts of four windows and more find theirs again as long as their other blocks."""


MOST_SHARE = 2
"""A pool of a window has one block in so many of a pool for all tokens at most, if a request can run in that. What is
beyond is better spent on tokens of all layers, even where not all requests can hold a window at once then."""


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
    wave = _wave(block_size, requests, wave_tokens)
    least = least_pool(block_size, span, requests, wave_tokens)
    if blocks < least:
        return blocks, None
    held = most_held(block_size, span, requests, wave_tokens)
    return max(least, min(blocks // MOST_SHARE, held + blocks // REUSABLE_SHARE)), wave


def pool_bounds(
    block_size: int, span: int, requests: int, wave_tokens: int
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """What a pool of one window never exceeds, however many blocks there are: one in so many, and these besides."""
    return (
        (1, 0),
        (MOST_SHARE, least_pool(block_size, span, requests, wave_tokens)),
        (REUSABLE_SHARE, most_held(block_size, span, requests, wave_tokens)),
    )


def window_tier(blocks: int, block_size: int, span: int) -> int:
    """Blocks of one window in a tier below the device: nobody computes there, so it is for what can be reused alone.

    A window at least, as nobody can resume from less.

    Args:
        blocks: of the tier of layers that keep every token; there are never more.
    """
    # One more, as a window need not begin with a block.
    return min(blocks, max(-(-blocks // REUSABLE_SHARE), -(-span // block_size) + 1))


def tier_bytes(a_token: int, sizes: Mapping[int, int], blocks: int, block_size: int) -> int:
    """Bytes of a tier below the device of so many blocks of layers that keep every token.

    Args:
        a_token: bytes of a token in all layers.
        sizes: by span, those of them in layers with such a window.
    """
    total = blocks * (a_token - sum(sizes.values()))
    return block_size * (
        total + sum(size * window_tier(blocks, block_size, span) for span, size in sizes.items())
    )


def most_held(block_size: int, span: int, requests: int, wave_tokens: int) -> int:
    """Blocks of one window that requests hold at once at most; see ``window_pool``."""
    window = -(-span // block_size)
    return (requests + 1) * (window + 1) + _wave(block_size, requests, wave_tokens)


def least_pool(block_size: int, span: int, requests: int, wave_tokens: int) -> int:
    """Blocks of one window in which a request can run alone; see ``window_pool``."""
    # It resumes from a window, and holds one at most between two waves, which need not begin with a block.
    return 2 * -(-span // block_size) + 1 + _wave(block_size, requests, wave_tokens)


def _wave(block_size: int, requests: int, wave_tokens: int) -> int:
    """Every chunk may begin in a block that is new, and end in one that is not full."""
    return wave_tokens // block_size + requests
