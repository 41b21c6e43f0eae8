"""Which requests a worker, or the proxy before the frontend, is answering, by the id that a client may choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wavepp_worker.errors import InvalidRequest


class LiveRequests:
    """At most one request an id. Used on the worker's event loop alone."""

    def __init__(self) -> None:
        self._stopped: dict[str, Callable[[], bool]] = {}

    def __len__(self) -> int:
        return len(self._stopped)

    @contextmanager
    def entered(self, request_id: str, is_stopped: Callable[[], bool]) -> Iterator[None]:
        """The time for which a request is answered; ``is_stopped`` tells whether its own caller gave up.

        Raises:
            InvalidRequest: as ``check_free``.
        """
        self.check_free(request_id)
        self._stopped[request_id] = is_stopped
        try:
            yield
        finally:
            del self._stopped[request_id]

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
