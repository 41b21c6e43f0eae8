"""What kind of cache a group of layers needs, and what resuming or running a request costs it in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wavepp_worker.errors import ConfigError

Kind = Literal["full", "sliding", "recurrent"]


@dataclass(frozen=True)
class WindowSpec:
    """One window of one rank: layers that share a cache policy, and the room they have.

    In a recurrent window a block is one state: a snapshot at a token boundary, or a request's working state.

    Attributes:
        name: for messages.
        kind: ``full`` attends to everything before, ``sliding`` to the last ``span`` tokens, ``recurrent``
            resumes from a snapshot.
        blocks: blocks on the device.
        host_blocks: blocks in host memory.
        disk_blocks: blocks on disk.
        span: sliding windows: how many tokens before an endpoint are needed to resume there.
        interval: recurrent windows: tokens between snapshots, a multiple of the block size; None for no
            snapshots.
        max_snapshots: recurrent windows: most snapshots one request takes, the latest ones; None for all.
    """

    name: str
    kind: Kind
    blocks: int
    host_blocks: int = 0
    disk_blocks: int = 0
    span: int = 0
    interval: int | None = None
    max_snapshots: int | None = None

    def validate(self, block: int) -> None:
        """Raise ConfigError unless the window can work with blocks of ``block`` tokens."""
        if self.blocks < 1 or self.host_blocks < 0 or self.disk_blocks < 0:
            raise ConfigError(
                f"window {self.name} has {self.blocks} blocks on the device, {self.host_blocks} on the host "
                f"and {self.disk_blocks} on disk; the device needs at least 1, the others at least 0"
            )
        if self.kind == "sliding" and self.span < 1:
            raise ConfigError(f"window {self.name} slides over {self.span} tokens; span is at least 1")
        if self.interval is not None and (self.interval < 1 or self.interval % block):
            raise ConfigError(
                f"window {self.name} takes a snapshot every {self.interval} tokens; interval must be "
                f"a multiple of the block size {block}, because only whole blocks have a key"
            )

    def needed(self, end: int, block: int) -> range:
        """The blocks whose content must be there to resume after ``end`` blocks.

        A recurrent window names its snapshot by the last block before the boundary.
        """
        if self.kind == "full":
            return range(end)
        if self.kind == "sliding":
            return range(max(0, (end * block - self.span) // block), end)
        return range(max(0, end - 1), end)

    def boundaries(self, end: int, prompt_tokens: int, block: int) -> range:
        """Token positions at which a request that resumes after ``end`` blocks takes snapshots, ascending.

        Never more than fit on the device beside the working state and the snapshot it resumes from: fewer
        snapshots mean less reuse later, but no prompt is too long to run.
        """
        if self.kind != "recurrent" or self.interval is None:
            return range(0)
        first = (end * block // self.interval + 1) * self.interval
        room = self.blocks - 1 - (end > 0)
        count = len(range(first, prompt_tokens, self.interval))
        kept = max(0, min(count, room, count if self.max_snapshots is None else self.max_snapshots))
        return range(first + (count - kept) * self.interval, prompt_tokens, self.interval)

    def new_blocks(self, end: int, prompt_tokens: int, block: int) -> int:
        """Device blocks a request takes for itself when it resumes after ``end`` blocks."""
        if self.kind == "recurrent":
            return 1 + len(self.boundaries(end, prompt_tokens, block))
        return -(-prompt_tokens // block) - end
