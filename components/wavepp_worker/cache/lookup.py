"""How far a prompt's prefix is usable: in one window, and in all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.tree import TieredTree
from wavepp_worker.cache.window_spec import WindowSpec


def agree(usable: Sequence[Callable[[int], int]], limit: int) -> int:
    """The largest ``n <= limit`` with ``usable[i](n) == n`` for all windows.

    Each function returns the largest usable number of blocks not above its argument; 0 is always usable.
    """
    end, agreeing, window = limit, 0, 0
    while end and agreeing < len(usable):
        lower = usable[window](end)
        agreeing = agreeing + 1 if lower == end else 1
        end, window = lower, (window + 1) % len(usable)
    return end


def hinted(
    spec: WindowSpec, window: int, block: int, index: HintIndex, keys: Sequence[int], limit: int
) -> int:
    """What the index believes is usable among the first ``limit`` blocks; owns nothing, may be stale."""
    if spec.kind == "full":
        return index.prefix(window, keys, limit)
    if spec.kind == "recurrent":
        return index.latest(window, keys, limit)
    return _latest_run(spec, block, lambda at: 0 if index.has(window, keys[at]) else None, limit, 0)


def usable(
    spec: WindowSpec, block: int, tree: TieredTree, keys: Sequence[int], limit: int, claims: int
) -> int:
    """The largest ``n <= limit`` blocks after which this window can resume.

    Args:
        claims: most unpinned device blocks that may be pinned for it; each is one block less to reclaim.
    """
    if spec.kind == "full":
        return _claimable_prefix(tree, keys, tree.match(keys, limit), claims)
    if spec.kind == "sliding":
        return _latest_run(spec, block, lambda at: _claim(tree, keys[at]), limit, claims)
    step = spec.interval // block if spec.interval is not None else limit + 1
    for end in range(limit // step * step, 0, -step):
        claim = _claim(tree, keys[end - 1])
        if claim is not None and claim <= claims:
            return end
    return 0


def _claim(tree: TieredTree, key: int) -> int | None:
    """Device blocks that pinning ``key`` makes unreclaimable; None if it is not attached."""
    node = tree.nodes.get(key)
    if node is None:
        return None
    return int(not node.pins and node.tier == Tier.DEVICE)


def _claimable_prefix(tree: TieredTree, keys: Sequence[int], present: int, claims: int) -> int:
    """Shorten a present prefix to what ``claims`` allow: its pinned part comes first, its device part too."""
    if present <= claims:
        return present
    pinned = leading(present, lambda at: tree.nodes[keys[at]].pins > 0)
    on_device = leading(present, lambda at: tree.nodes[keys[at]].tier == Tier.DEVICE)
    return present if on_device - pinned <= claims else pinned + max(0, claims)


def leading(count: int, holds: Callable[[int], bool]) -> int:
    """How many of ``0 … count-1`` satisfy a condition that only a leading part satisfies."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    return low


def _latest_run(
    spec: WindowSpec, block: int, claim: Callable[[int], int | None], limit: int, claims: int
) -> int:
    """The largest ``end <= limit`` whose sliding window is present and costs at most ``claims``: one scan."""
    end, low, cost = limit, limit, 0
    while end:
        first = spec.needed(end, block).start
        while low > first:
            price = claim(low - 1)
            if price is None:
                end, low, cost = low - 1, low - 1, 0
                break
            low, cost = low - 1, cost + price
        else:
            if cost <= claims:
                return end
            cost -= claim(end - 1) or 0
            end -= 1
    return 0
