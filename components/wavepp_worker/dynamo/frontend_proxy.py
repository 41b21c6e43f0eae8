"""The HTTP server in front of Dynamo's frontend.

It refuses what ``openai_checks`` and ``worker_choice`` find, with status 400 and a sentence, says so where the
model's chat template does not take a chat, and passes everything else through unchanged. What it cannot read it
does not pass on: nobody would have checked it. The token ids of a long prompt alone it reads only if the frontend
refuses them or a worker fails at them, and then says what is wrong with them.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from aiohttp import web

from wavepp_worker.dynamo.body_json import decoded, decoded_but_ids, ids_unread
from wavepp_worker.dynamo.bounded_http_server import BoundedHttpServer, leaves_http
from wavepp_worker.dynamo.carried_fields import CARRYING_PATHS, with_carried
from wavepp_worker.dynamo.chat_template import ChatTemplate
from wavepp_worker.dynamo.choices import check_bytes, choices_wanted
from wavepp_worker.dynamo.drain_answers import STATUS, drain_answer
from wavepp_worker.dynamo.extensions_off import lost_without_extensions
from wavepp_worker.dynamo.fan_out import FanOut
from wavepp_worker.dynamo.guided_body import wanted_grammars
from wavepp_worker.dynamo.http_metrics import METRICS_PATH, HttpMetrics
from wavepp_worker.dynamo.live_requests import LiveRequests
from wavepp_worker.dynamo.openai_checks import CHECKED_PATHS, refusal, refused_tenant
from wavepp_worker.dynamo.request_bodies import LARGE_BODY_BYTES, BodyRefused, RequestBodies
from wavepp_worker.dynamo.request_headers import ID_HEADER, unclear_header
from wavepp_worker.dynamo.upstream import Unanswered, Upstream
from wavepp_worker.dynamo.worker_choice import refused_header
from wavepp_worker.errors import ConfigError, InvalidRequest, RequestFailed
from wavepp_worker.model.grammar.judge import GrammarJudge

CLIENT_LEFT = 499
"""What proxies call this; nobody sees it."""
CLOSED_PATHS = ("/busy_threshold",)
"""What the frontend lets anybody change for everybody, such as the load at which it turns requests away."""
CHAT_PATH, PROMPT_PATH = "/v1/chat/completions", "/v1/completions"
NO_CHATS = (
    "the model has no chat template, so it takes no messages; ask /v1/completions with a prompt, or have its worker "
    "started with --custom-jinja-template"
)

_Found = TypeVar("_Found")


class FrontendProxy:
    """The HTTP server in front of the frontend.

    Attributes:
        upstream: the frontend, as it is asked.
    """

    def __init__(
        self,
        upstream: str,
        vocab_size: int | None,
        template: ChatTemplate | None = None,
        *,
        chats: bool = True,
        judge: GrammarJudge | None = None,
        migrations: int = 0,
        extensions: bool = True,
        served: frozenset[str] = frozenset(),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare a proxy; it does not listen yet.

        Args:
            upstream: base URL of the frontend.
            vocab_size: token ids are below it; None if unknown.
            template: of the model; None if unknown.
            chats: whether the model has a template at all; without, the frontend may have no path for chats.
            judge: of what answers are to match, closed with the proxy; None if the model is unknown.
            migrations: how often a request may go to another worker, see ``Upstream``.
            extensions: whether the frontend hands ``nvext`` on.
            served: names of the models that all this is known of; none for every model. Requests for others pass as
                they are.
            tls: what clients are to speak; None for plain HTTP.
        """
        self._template = template
        self._served = served
        self._extensions = extensions
        self._tls = tls
        self._chats = chats
        self._grammars = judge
        self.upstream = Upstream(upstream, migrations=migrations)
        self._vocab_size = vocab_size
        self._metrics = HttpMetrics()
        self._live = LiveRequests()
        self._bodies = RequestBodies()
        self._fan_out = FanOut()
        self._turn = asyncio.Lock()
        self._runner: web.ServerRunner | None = None
        self._server: BoundedHttpServer | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            ConfigError: the port cannot be bound.
        """
        await self.upstream.open()
        # A client that goes away ends its handler and thereby the request to the frontend, which cancels it.
        self._server = BoundedHttpServer(
            self._handle, handler_cancellation=True, access_log=None, auto_decompress=False
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, ssl_context=self._tls).start()
        except OSError as error:
            raise ConfigError(
                f"--http-port: cannot listen on {host}:{port} ({error.strerror}); choose a free port"
            ) from error
        await self._fan_out.open(_own_url(host, self.port, "http" if self._tls is None else "https"))

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    def refuse(self, sentence: str) -> None:
        """Pass no more requests on to workers, and say why; clients are to ask elsewhere, so no connection is kept."""
        self.upstream.refuse(sentence)
        if self._server is not None:
            self._server.leave()

    async def close(self) -> None:
        """Stop listening; idempotent, also if never started."""
        if self._runner is not None:
            await self._runner.cleanup()
        await self.upstream.close()
        await self._fan_out.close()
        if self._grammars is not None:
            self._grammars.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        status = CLIENT_LEFT
        try:
            response = await self._answer(request)
            status = response.status
            return response
        except ConnectionResetError:
            # The client has left while it sent its body or took the answer: nothing to tell, and nothing to log.
            return web.Response(status=CLIENT_LEFT)
        finally:
            if not self._fan_out.asked(request):
                self._metrics.answered(request.path, status)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if leaves_http(request):
            sentence = "this is no proxy and speaks HTTP alone; ask without CONNECT and without Upgrade"
            return _refused(400, "Bad Request", sentence)
        if (unclear := unclear_header(request.headers)) is not None:
            return _refused(400, "Bad Request", unclear)
        if request.path in CLOSED_PATHS:
            sentence = f"{request.path} is not for clients; set it where Dynamo starts"
            return _refused(403, "Forbidden", sentence)
        if self.upstream.refuses and (drained := drain_answer(request.method, request.path)) is not None:
            return web.json_response(drained, status=STATUS)
        try:
            async with self._bodies.body(request) as body:
                asked = await self._in_turn(body, lambda: self._check(request, body))
                await self._judge_grammars(asked)
                if request.path == METRICS_PATH:
                    return await self._own_and_dynamos_metrics()
                # Workers would refuse it too, but Dynamo's frontend makes an internal error of that.
                with self._chosen_id(request):
                    if (count := choices_wanted(asked)) > 1 and request.path in CARRYING_PATHS:
                        check_bytes(count, len(body))
                        return await self._fan_out.answer(request, asked, count)
                    passed_on = _passed_on(request, body, asked)
                    return await self._pass_on(request, passed_on, asked)
        except InvalidRequest as error:
            return _refused(400, "Bad Request", str(error))
        except (BodyRefused, Unanswered) as error:
            return _refused(error.status, error.kind, str(error))

    async def _pass_on(self, request: web.BaseRequest, body: bytes, asked: Any) -> web.StreamResponse:
        async def complaint(status: int) -> str | None:
            if ids_unread(asked):
                return await self._in_turn(
                    body, lambda: refusal(request.path, decoded(body), self._vocab_size)
                )
            if request.path != CHAT_PATH or not isinstance(asked, Mapping) or status == 400:
                return None
            if not self._chats:
                return NO_CHATS
            if (template := self._template) is None:
                return None
            return await self._in_turn(body, lambda: template.complaint(decoded(body)))

        answer = await self.upstream.answer(
            request, body, from_workers=request.path in CHECKED_PATHS, complaint=complaint
        )
        return _refused(400, "Bad Request", answer) if isinstance(answer, str) else answer

    async def _own_and_dynamos_metrics(self) -> web.Response:
        status, kind, dynamos = await self.upstream.fetch(METRICS_PATH)
        own = self._metrics.text() if status == 200 else b""
        return web.Response(status=status, body=dynamos + own, headers={"Content-Type": kind})

    def _chosen_id(self, request: web.BaseRequest) -> AbstractContextManager[None]:
        """Raises ``InvalidRequest`` on entry if a request that is being answered has the id that this one chose."""
        try:
            chosen = uuid.UUID(request.headers[ID_HEADER])
        except (KeyError, ValueError):
            # The frontend, too, takes nothing but such ids, and makes one up then.
            return nullcontext()
        return self._live.entered(str(chosen), lambda: False)

    async def _judge_grammars(self, body: Any) -> None:
        grammars = wanted_grammars(body) if isinstance(body, Mapping) else []
        if self._grammars is None:
            return
        try:
            for grammar in grammars:
                await asyncio.wrap_future(self._grammars.judge(grammar))
        except RequestFailed as error:
            raise Unanswered(str(error)) from error

    async def _in_turn(self, body: bytes, check: Callable[[], _Found]) -> _Found:
        """What ``check`` finds in a body; raises as that.

        Large ones, which take up to half a second, are looked at one at a time, with pauses as long before the next
        one: whoever else asks, such as the launcher for a sign of life, comes in between.
        """
        if len(body) < LARGE_BODY_BYTES:
            return check()
        await self._turn.acquire()
        begun = time.monotonic()
        try:
            return check()
        finally:
            asyncio.get_running_loop().call_later(time.monotonic() - begun, self._turn.release)

    def _check(self, request: web.BaseRequest, body: bytes) -> Any:
        """The decoded body, where workers answer it, else None; the ids of a long prompt are not read.

        Raises:
            InvalidRequest: something speaks against the request.
        """
        if not request.raw_path.startswith("/"):
            raise InvalidRequest(f"{request.raw_path!r} is no path; ask for one that begins with /")
        if request.path not in CHECKED_PATHS:
            return None
        if request.raw_path.partition("?")[0] != request.path:
            raise InvalidRequest(f"write the path as it is: {request.path}")
        if request.method != "POST":
            return None
        asked = decoded_but_ids(body) if request.path == PROMPT_PATH else decoded(body)
        if self._is_anothers(asked):
            return None
        if ids_unread(asked) and (choices_wanted(asked) > 1 or asked.get("logit_bias")):
            # Such a body is written anew.
            asked = decoded(body)
        sentence = (
            refused_header(request.headers)
            or refused_tenant(request.headers)
            or refusal(request.path, asked, self._vocab_size)
            or (None if self._extensions else lost_without_extensions(request.headers, asked))
        )
        if sentence is not None:
            raise InvalidRequest(sentence)
        return asked

    def _is_anothers(self, asked: Any) -> bool:
        """Whether a body names a model of which nothing is known here."""
        model = asked.get("model") if isinstance(asked, Mapping) else None
        return bool(self._served) and isinstance(model, str) and model not in self._served


def _passed_on(request: web.BaseRequest, body: bytes, asked: Any) -> bytes:
    """A body as the frontend is to have it: as it came, unless it would drop some of it."""
    if request.path not in CARRYING_PATHS or not isinstance(asked, Mapping):
        return body
    carried = with_carried(asked)
    return body if carried is None else json.dumps(carried).encode()


def _own_url(host: str, port: int, scheme: str) -> str:
    """Where the server that listens on ``host`` reaches itself."""
    own = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{own}]:{port}" if ":" in own else f"{scheme}://{own}:{port}"


def _refused(status: int, kind: str, sentence: str) -> web.Response:
    # The shape of the frontend's own refusals.
    return web.json_response({"message": sentence, "type": kind, "code": status}, status=status)
