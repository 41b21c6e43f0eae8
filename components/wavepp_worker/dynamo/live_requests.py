"""Which requests a worker, or the proxy before the frontend, is answering, by the id that a client may choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wavepp_worker.dynamo.request_log import TraceIds
from wavepp_worker.errors import InvalidRequest


class LiveRequests:
    """At most one request an id. Used on the worker's event loop alone, but for ``trace_of``."""

    def __init__(self) -> None:
        self._stopped: dict[str, Callable[[], bool]] = {}
        self._traces: dict[str, TraceIds] = {}

    def __len__(self) -> int:
        return len(self._stopped)

    @contextmanager
    def entered(
        self, request_id: str, is_stopped: Callable[[], bool], trace: TraceIds | None = None
    ) -> Iterator[None]:
        """The time for which a request is answered.

        Args:
            is_stopped: tells whether its own caller gave up.
            trace: what it is part of, for log lines.

        Raises:
            InvalidRequest: as ``check_free``.
        """
        self.check_free(request_id)
        self._stopped[request_id] = is_stopped
        if trace is not None:
            self._traces[request_id] = trace
        try:
            yield
        finally:
            del self._stopped[request_id]
            self._traces.pop(request_id, None)

    def trace_of(self, request_id: str) -> tuple[str, TraceIds] | None:
        """The id and trace of a live request, by its id or one that an attempt or the ranks have of it; any thread."""
        for each in (request_id, request_id.rpartition("-")[0]):
            if (found := self._traces.get(each)) is not None:
                return each, found
        return None

    def check_free(self, request_id: str) -> None:
        """Refuse an id that is taken.

        Raises:
            InvalidRequest: another request of this id is being answered; it goes on.
        """
        if request_id in self._stopped:
            raise InvalidRequest(
                f"request id {request_id} is in use by a request that is still being answered; choose another id, "
                "or leave the choice to the frontend"
            )

    def given_up(self, request_id: str) -> bool:
        """Whether the caller of the request that is answered under this id gave it up.

        Not so if it was the caller of another one, which was refused.
        """
        is_stopped = self._stopped.get(request_id)
        return is_stopped is not None and is_stopped()
