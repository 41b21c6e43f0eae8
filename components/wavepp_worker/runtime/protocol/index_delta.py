"""How the blocks that can be reused on every rank change, as a replica tells it. Frozen and typed."""

from __future__ import annotations

import msgspec

from wavepp_worker.cache.moves import Tier


class IndexDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that became reusable on every rank, stopped being so on the first one, or are on another tier now.

    Exactly one of the three is filled. For ``stored``, blocks are one parent-to-child chain. A block is on the slowest
    tier that it is on on any rank.

    Attributes:
        stored: hashes of the prefixes that end with each block (unsigned 64 bit), parents first; equal in all
            replicas of a model, and not the keys that caches compare.
        parent: hash of the block before ``stored[0]``, None at the root.
        tokens: packed token ids of ``stored``, see ``token_ids``.
        salt: the salt the blocks were stored under.
        lora: their LoRA name.
        removed: hashes of blocks, leaves first.
        moved: hashes of blocks.
        tier: where ``stored`` or ``moved`` are now.
    """

    stored: tuple[int, ...] = ()
    parent: int | None = None
    tokens: bytes = b""
    salt: str = ""
    lora: str = ""
    removed: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    tier: Tier = Tier.DEVICE
