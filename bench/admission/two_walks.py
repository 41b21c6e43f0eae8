"""The look-up that hint index and leases are compared with: a walk of the tree to find, another one to pin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.runtime.admission.actions import RoundActions

from bench.admission.cached_rank import CachedRank


def first_walk(cache: RankCache, keys: Sequence[bytes], prompt_tokens: int) -> int:
    """The look-up of the two-walk baseline: block by block down the tree, under its mutex; tokens."""
    depth = 0
    limit = min(len(keys), (prompt_tokens - 1) // cache.block_size)
    with cache.windows() as windows:
        nodes = windows[0].tree.nodes
        parent = None
        for key in keys[:limit]:
            node = nodes.get(key)
            if node is None or node.parent is not parent:
                break
            parent = node
            depth += 1
    return depth * cache.block_size


class TwoWalkActions(RoundActions):
    """Looks prefixes up in the tree. The walk that pins is the lease's, as in the other."""

    def _endpoint(self, request_id: str) -> int:
        local = self.requests.known(request_id)
        return first_walk(self.cache, local.keys, local.request.prompt_tokens)


def round_actions(rank: CachedRank, two_walks: bool) -> RoundActions:
    """What the rank does in rounds; with ``two_walks``, as the baseline looks prefixes up."""
    actions = rank.parts.actions
    if not two_walks:
        return actions
    parts = {each.name: getattr(actions, each.name) for each in fields(actions) if each.init}
    return TwoWalkActions(**parts)
