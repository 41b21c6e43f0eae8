"""The NIXL agents of ranks that this worker reads from: connected once, dropped when lost or long unused."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

from wavepp_worker.errors import AuditError

logger = logging.getLogger(__name__)

AGENTS_KEPT = 64
"""Agents that stay connected while nobody reads from them; a rank that starts again comes as another agent."""


class RemoteAgents:
    """Agents by their metadata, the least recently used first. Thread-safe.

    Args:
        local: this worker's own NIXL agent.
    """

    def __init__(self, local: Any) -> None:
        self._local = local
        self._names: OrderedDict[bytes, str] = OrderedDict()
        self._using: Counter[bytes] = Counter()
        self._lost: set[bytes] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._names)

    @contextlib.contextmanager
    def connected(self, metadata: bytes) -> Iterator[str]:
        """NIXL's name of the agent, which is not dropped for lack of use meanwhile.

        Raises what NIXL raises if the agent cannot be connected.
        """
        with self._lock:
            name = self._names.get(metadata)
            if name is None:
                added = self._local.add_remote_agent(metadata)
                name = added.decode() if isinstance(added, bytes) else added
                self._names[metadata] = name
            self._names.move_to_end(metadata)
            self._using[metadata] += 1
        try:
            yield name
        finally:
            with self._lock:
                self._using[metadata] -= 1
                if not self._using[metadata]:
                    del self._using[metadata]
                    if metadata in self._lost:
                        self._remove(metadata)
                unused = [each for each in self._names if each not in self._using]
                for each in unused[: max(0, len(unused) - AGENTS_KEPT)]:
                    self._remove(each)

    def drop(self, metadata: bytes) -> None:
        """The agent is lost: once nobody reads from it, who needs it connects anew. Unknown ones are ignored."""
        with self._lock:
            if metadata in self._using:
                self._lost.add(metadata)
            elif metadata in self._names:
                self._remove(metadata)

    def check(self) -> None:
        """Raise ``AuditError`` if more unused agents are connected than are kept."""
        with self._lock:
            unused = sum(each not in self._using for each in self._names)
        if unused > AGENTS_KEPT:
            raise AuditError(f"{unused} unused NIXL agents are connected, but {AGENTS_KEPT} are kept at most")

    def _remove(self, metadata: bytes) -> None:
        name = self._names.pop(metadata)
        self._lost.discard(metadata)
        try:
            self._local.remove_remote_agent(name)
        except Exception as error:
            logger.info("NIXL agent %s was gone already: %s", name, error)
