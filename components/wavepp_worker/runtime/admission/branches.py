"""Where others will resume of the prompt of a request that is about to run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from wavepp_worker.block_keys import KEY_BYTES, BlockKeys
from wavepp_worker.runtime.admission.demand import Prompt
from wavepp_worker.runtime.admission.in_the_making import common_blocks


def branches(
    keys: BlockKeys, start: int, others: Iterable[Prompt], reusable: int, seen: int = 0
) -> tuple[int, ...]:
    """The endpoints (blocks) at which others would resume, if a request with these keys computes from ``start`` on.

    Those that most of them want come first, the further one before the nearer. Last come the furthest that the same
    prompt could resume at itself, for who asks the same again, and its end, for a conversation's next turn: in a prompt
    of whole blocks that is one block more, else the same.

    Args:
        reusable: most blocks of the prompt that the same prompt could reuse: its last token is always computed.
        seen: blocks that an earlier prompt began with as well. Who computes them again, because there is no snapshot
            where the two part, is the second to come by, and not the last.
    """
    wanted: Counter[int] = Counter()
    # Cut out once and compared here: most of those that wait share nothing, and there may be many.
    part = slice(KEY_BYTES * start, KEY_BYTES * (start + 1))
    following = keys.packed[part]
    for other in others if following else ():
        limit = min(len(keys), other.reusable)
        if other.keys.packed[part] == following and start < limit:
            wanted[common_blocks(keys, other.keys, start + 1, limit)] += 1
    if start < seen:
        wanted[seen] += 1
    if start < reusable:
        wanted[reusable] += 0
    ends = sorted(wanted, key=lambda end: (-wanted[end], -end))
    if start < len(keys) and len(keys) not in wanted:
        ends.append(len(keys))
    return tuple(ends)
