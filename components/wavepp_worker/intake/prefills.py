"""What runs the jobs of a queue, as far as the intake knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.runtime.client.engine import PrefillEngine
from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult


class Prefills(Protocol):
    """A prefill engine and the rooms in which its KV is handed over; from any event loop.

    Attributes:
        engine: the engine.
    """

    engine: PrefillEngine

    def address(self, bootstrap_room: int) -> BootstrapAddress:
        """Where a room can be claimed."""

    async def prefill(
        self,
        request: PrefillRequest,
        bootstrap_room: int,
        is_stopped: Callable[[], bool],
        on_admitted: Callable[[], None] | None = None,
    ) -> PrefillResult:
        """Prefill a request whose KV will be claimed in a room.

        Args:
            request: submitted with ``handoff``.
            bootstrap_room: where.
            is_stopped: whether nobody wants it any more; looked at while waiting.
            on_admitted: called from the engine's thread once all ranks hold room for it.

        Raises:
            WaveppError: as of the engine.
        """

    async def prefill_alone(
        self,
        request: PrefillRequest,
        is_stopped: Callable[[], bool],
        on_admitted: Callable[[], None] | None = None,
    ) -> PrefillResult:
        """Prefill a request whose KV nobody comes for.

        Raises:
            WaveppError: as of the engine.
        """
