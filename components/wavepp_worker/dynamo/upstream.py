"""Dynamo's frontend as the proxy asks it, and what clients are told where it does not answer.

Dynamo says no more than ``Failed to fold completions stream`` or ``Internal server error`` when a worker dies under a
request. Here the client is told who died, and a request that has got nothing of its answer yet is asked again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web
from yarl import URL

from wavepp_worker.dynamo.frontend_errors import error_event, failure_in, message, refusal
from wavepp_worker.dynamo.request_headers import CHOICE_HEADER, HOP_BY_HOP, passed_on
from wavepp_worker.liveness.deaths import VARIABLE, Death, deaths_since, missed_since, to_blame

LEASE_SECONDS = 12.0
"""How long after a worker's death Dynamo may still send requests to it, where nobody takes it out of discovery."""
NEWS_SECONDS = 2.0
"""That the news of a death may take: the request that fails of it is sometimes first."""
AGAIN_SECONDS = 0.2
"""Before a request is asked again: the frontend, too, has to hear of the death. Twice as long each time."""
MOST_AGAIN_SECONDS = 2.0
_POLL_SECONDS = 0.05
VAGUE = "is not ready to serve requests"
"""In what Dynamo says, at more length, where workers are missed."""
PANICKED = "Failed to await"
"""In what Dynamo says of an answer that a panic of its own cut off, such as at half a character."""
PAUSED = "WorkerPaused: "
"""In what a worker says that takes no requests for now; others may."""
UNAVAILABLE = "Service temporarily unavailable"
"""All that Dynamo 1.6 says, with 503, of a request whose worker died, was paused or left discovery."""
UNTOLD_SECONDS = 1.0
"""That the news of a death is waited for where there may be none: most of what Dynamo says so little of is a death."""
UNBEGUN = "Failed to generate"
"""In what Dynamo says of a request that no worker has begun, as whoever it was sent to left discovery."""
_NOT_PASSED_ON = HOP_BY_HOP | {CHOICE_HEADER}
"""Among headers: the last is the proxy's own."""


class Unanswered(Exception):
    """There is no answer; the message is for the client.

    Attributes:
        status: of HTTP: 503 if it is worth while to ask again.
        kind: as the frontend calls it.
    """

    def __init__(self, message: str, status: int = 503, kind: str = "Service Unavailable") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class _Died(Exception):
    """Nothing of the answer has come, and whoever computed it may have died."""


class Upstream:
    """Asks the frontend. To be opened and closed in a running loop."""

    def __init__(self, url: str, *, migrations: int = 0) -> None:
        """Ask nothing yet.

        Args:
            url: of the frontend, without a path.
            migrations: how often a request may go to another worker, as somebody has said who knows that no request
                harms a worker; 0 to ask once more, and only where a worker is known to have died.
        """
        self._url = url
        self._migrations = migrations
        self._session: aiohttp.ClientSession | None = None
        self._answering: set[asyncio.Task[object]] = set()
        self._refusal: str | None = None
        self._over: str | None = None

    def __len__(self) -> int:
        """Requests that workers are answering."""
        return len(self._answering)

    async def open(self) -> None:
        """Be ready to ask."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
            # No header is added to a client's request but Host and Content-Length, which are made anew, and no cookie
            # of another's answer.
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Ask nothing more; idempotent, also if never opened."""
        if self._session is not None:
            await self._session.close()

    async def fetch(self, path: str) -> tuple[int, str, bytes]:
        """What the frontend itself says at a path: status, type and body.

        Raises:
            Unanswered: it does not listen yet.
        """
        assert self._session is not None
        try:
            # A compressed body could not be added to.
            headers = {"Accept-Encoding": "identity"}
            async with self._session.get(self._url + path, headers=headers) as answer:
                return answer.status, answer.headers.get("Content-Type", "text/plain"), await answer.read()
        except aiohttp.ClientConnectorError:
            raise Unanswered("the frontend is not up yet; try again shortly") from None

    @property
    def refuses(self) -> bool:
        """Whether requests for workers are refused."""
        return self._refusal is not None

    def refuse(self, sentence: str) -> None:
        """Pass no more requests on to workers, and say why."""
        self._refusal = sentence

    def end_all(self, sentence: str) -> None:
        """Have whoever waits for an answer of workers told that it ends here, and why."""
        self._over = sentence
        for task in tuple(self._answering):
            task.cancel()

    async def answer(
        self,
        request: web.BaseRequest,
        body: bytes,
        *,
        from_workers: bool,
        complaint: Callable[[int], Awaitable[str | None]],
    ) -> web.StreamResponse | str:
        """Pass a request on and its answer back; or a sentence that speaks against the request.

        Args:
            from_workers: whether workers answer it, who may die meanwhile.
            complaint: asked, if the frontend fails, refuses or has no such path, whether the request is to blame; is
                given the frontend's status.

        Raises:
            Unanswered: says why.
        """
        task = asyncio.current_task()
        assert task is not None
        if from_workers:
            if self._refusal is not None:
                raise Unanswered(self._refusal)
            self._answering.add(task)
        try:
            began, failures = time.monotonic(), 0
            while True:
                try:
                    return await self._ask(request, body, from_workers, complaint)
                except _Died as error:
                    if failures == max(1, self._migrations):
                        raise await self._given_up(error, began) from error
                    if failures == 0 and not await self._may_be_asked_again(error, began):
                        raise Unanswered(str(error), 500, "Internal Server Error") from error
                await asyncio.sleep(min(AGAIN_SECONDS * 2**failures, MOST_AGAIN_SECONDS))
                failures += 1
        except asyncio.CancelledError:
            if self._over is None:
                raise
            raise Unanswered(self._over) from None
        except aiohttp.ClientConnectorError:
            raise Unanswered("the frontend is not up yet; try again shortly") from None
        finally:
            self._answering.discard(task)

    async def _may_be_asked_again(self, error: _Died, began: float) -> bool:
        """Whether another worker may answer what failed; waits for the news of a death."""
        if self._migrations or any(each in str(error) for each in (PANICKED, UNBEGUN, PAUSED)):
            return True
        if UNAVAILABLE in str(error):
            await self._deaths(began, UNTOLD_SECONDS)
            return True
        return bool(await self._deaths(began, NEWS_SECONDS))

    async def _given_up(self, error: _Died, began: float) -> Unanswered:
        deaths = await self._deaths(began, NEWS_SECONDS)
        if not deaths and not any(each in str(error) for each in (UNBEGUN, PAUSED, UNAVAILABLE)):
            return Unanswered(str(error), 500, "Internal Server Error")
        return Unanswered(f"{_told(deaths) or error}; ask again")

    async def _ask(
        self,
        request: web.BaseRequest,
        body: bytes,
        from_workers: bool,
        complaint: Callable[[int], Awaitable[str | None]],
    ) -> web.StreamResponse | str:
        assert self._session is not None
        began = time.monotonic()
        async with self._session.request(
            request.method,
            # As it is: a path that is rewritten on the way is not the one that was checked.
            URL(self._url + request.raw_path, encoded=True),
            headers=passed_on(request.headers, _NOT_PASSED_ON),
            data=body or None,
            allow_redirects=False,
        ) as answer:
            if not from_workers:
                return await self._relay(request, answer, b"", began)
            first = await answer.content.readany()
            no_path = answer.status == 404 and not first
            missed = (
                missed_since(os.environ, began - LEASE_SECONDS) if no_path or answer.status == 503 else []
            )
            failure = failure_in(first)
            fails = answer.status in (400, 500) or no_path or (failure is not None and failure.start() == 0)
            if fails and (sentence := await complaint(answer.status)) is not None:
                return sentence
            if answer.status == 500:
                raise _Died(message(first + await answer.content.read()))
            if no_path:
                # A frontend that has just started has no such path until it has found a worker, or if all are gone.
                raise Unanswered(
                    f"{_told(missed)}; ask again"
                    if missed
                    else "the frontend has not found a worker yet; try again shortly"
                )
            if answer.status == 503:
                first += await answer.content.read()
                text = message(first)
                if UNAVAILABLE in text:
                    raise _Died(text)
                if missed:
                    raise Unanswered(f"{_told(missed)}; {'ask again' if VAGUE in text else text}")
            if failure is not None and failure.start() == 0:
                raise _Died(message(first))
            if (refused := refusal(first)) is not None:
                raise Unanswered(message(first), refused.value, refused.phrase)
            return await self._relay(request, answer, first, began)

    async def _relay(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse, first: bytes, began: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for key, value in answer.headers.items():
            if key.lower() not in HOP_BY_HOP:
                response.headers.add(key, value)
        if self.refuses:
            response.force_close()
        events = answer.content_type == "text/event-stream"
        await response.prepare(request)
        piece = first
        try:
            while piece or not answer.content.at_eof():
                failure = failure_in(piece) if events else None
                if failure is not None and (told := _told(await self._deaths(began, NEWS_SECONDS))):
                    piece = piece[: failure.start(1)] + error_event(told) + piece[failure.end(1) :]
                await response.write(piece)
                piece = await answer.content.readany()
        except asyncio.CancelledError:
            if self._over is None:
                raise
            if not events:
                # Half of another answer: there is no place in it for a sentence.
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionResetError(self._over) from None
            await response.write(b"data: " + error_event(self._over) + b"\n\ndata: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _deaths(self, began: float, seconds: float) -> list[Death]:
        """Whose death a request may have failed of that began then; waits so long, if a launcher brings news."""
        if VARIABLE not in os.environ:
            return []
        deadline = time.monotonic() + seconds
        while not (deaths := deaths_since(os.environ, began - LEASE_SECONDS)):
            if time.monotonic() > deadline:
                # With etcd away, discovery outlives who died: leases go on when it is back, and workers come back then.
                return missed_since(os.environ, began - LEASE_SECONDS)
            await asyncio.sleep(_POLL_SECONDS)
        return deaths


def _told(deaths: list[Death]) -> str:
    return ", and ".join(
        f"{death.label} {death.why}{'' if death.back is None else ', and is just back'}"
        for death in to_blame(deaths)
    )
