"""Which blocks some requests compute, for others that need one of them next. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.in_the_making import block_at


class HasKeys(Protocol):
    """What is looked at of a request; see ``Waiting``."""

    @property
    def keys(self) -> BlockKeys: ...


class NextBlocks:
    """The blocks of requests, by place: many may ask about as many, and most of them ask about few places."""

    def __init__(self, requests: Iterable[HasKeys] = ()) -> None:
        self._requests = list(requests)
        self._blocks: dict[int, set[bytes]] = {}

    def add(self, request: HasKeys) -> None:
        """One more computes its blocks."""
        self._requests.append(request)
        for place, blocks in self._blocks.items():
            blocks.add(block_at(request.keys, place))

    def made(self, keys: BlockKeys, present: int, limit: int) -> bool:
        """Whether one of them computes the block that a request, which has ``present`` of its ``limit``, needs next."""
        if present >= limit or not self._requests:
            return False
        if present not in self._blocks:
            self._blocks[present] = {block_at(request.keys, present) for request in self._requests}
        block = block_at(keys, present)
        return block != b"" and block in self._blocks[present]
