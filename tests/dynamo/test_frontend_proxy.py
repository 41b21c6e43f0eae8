from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from wavepp_worker.dynamo import frontend_proxy, request_bodies
from wavepp_worker.dynamo.chat_template import ChatTemplate
from wavepp_worker.dynamo.frontend import tls_context
from wavepp_worker.dynamo.frontend_proxy import FrontendProxy
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.chat_template import MessageWriter

from tests.support.certificates import loopback_certificates
from tests.support.proxied_frontend import proxy_before

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


class Upstream:
    """A frontend that streams two pieces, a second apart if told to, and notices clients that leave."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes, str]] = []
        self.pause = 0.0
        self.starting: str | None = None
        self.failing = False
        self.fails: tuple[int, bytes] | None = None
        self.failed = 0
        self.metrics = ""
        self.left = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self.metrics:
            return web.Response(text=self.metrics)
        if self.fails is not None and request.method == "POST":
            self.failed += 1
            return web.Response(
                status=self.fails[0], body=self.fails[1], headers={"Content-Type": "text/event-stream"}
            )
        if self.failing:
            return web.json_response({"message": "Failed to parse chat completion response"}, status=500)
        if self.starting is not None:
            response = web.StreamResponse(status=404)
            await response.prepare(request)
            await response.write(self.starting.encode())
            return response
        self.requests.append((request.method, request.raw_path, body, request.headers.get("x-mark", "")))
        response = web.StreamResponse(status=207, headers={"x-answer": "yes"})
        await response.prepare(request)
        try:
            await response.write(b"data: one\n\n")
            await asyncio.sleep(self.pause)
            await response.write(b"data: two\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        return response


def through_the_proxy(
    check: Callable[[str, Upstream, aiohttp.ClientSession], Awaitable[None]],
    *,
    chats: bool = True,
    served: frozenset[str] = frozenset(),
    tls: ssl.SSLContext | None = None,
) -> None:
    async def main() -> None:
        upstream = Upstream()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", upstream.handle)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        ports = _ports(2)
        await web.TCPSite(runner, "127.0.0.1", ports[0]).start()
        template = ChatTemplate(MessageWriter("{{ messages[0].content + 'a' }}", {}))
        proxy = FrontendProxy(
            f"http://127.0.0.1:{ports[0]}", 100, template, chats=chats, served=served, tls=tls
        )
        scheme = "http" if tls is None else "https"
        await proxy.start("127.0.0.1", ports[1])
        try:
            async with aiohttp.ClientSession() as session:
                await asyncio.wait_for(check(f"{scheme}://127.0.0.1:{ports[1]}", upstream, session), 20)
        finally:
            await proxy.close()
            await proxy.close()
            await runner.cleanup()

    asyncio.run(main())


def _ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(server.getsockname()[1]) for server in servers]
    for server in servers:
        server.close()
    return ports


def test_requests_for_models_of_others_pass_as_they_are() -> None:
    """Their vocabulary may be larger, and their workers may know what ours do not."""
    theirs = {"model": "theirs", "prompt": [100_000], "echo": True, "n": 2}

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{url}{COMPLETIONS}", json=theirs) as answer:
            assert answer.status == 207
        assert [json.loads(body) for _, _, body, _ in upstream.requests] == [theirs]
        for name in ("ours", "an adapter"):
            async with session.post(f"{url}{COMPLETIONS}", json={**theirs, "model": name}) as answer:
                assert answer.status == 400
        for none in ({}, {"model": None}, {"model": ["theirs"]}):
            async with session.post(f"{url}{COMPLETIONS}", json={"prompt": [100_000], **none}) as answer:
                assert answer.status == 400, "who names no model is not passed on unchecked"
        upstream.failing = True
        async with session.post(f"{url}{CHAT}", json={**HELLO, "model": "theirs"}) as answer:
            assert (answer.status, (await answer.json())["message"][:15]) == (500, "Failed to parse")

    through_the_proxy(check, chats=False, served=frozenset({"ours", "an adapter"}))


def test_with_a_certificate_clients_speak_https_and_several_choices_work(tmp_path: Path) -> None:
    """The proxy asks itself for choices, and the frontend by plain HTTP."""
    authority, *certificate = loopback_certificates(tmp_path)
    trusting = ssl.create_default_context(cafile=str(authority))

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{url}{CHAT}", json=HELLO, ssl=trusting) as answer:
            assert (answer.status, await answer.text()) == (207, "data: one\n\ndata: two\n\n")
        async with session.post(f"{url}{CHAT}", json={**HELLO, "n": 2}, ssl=trusting) as answer:
            # The first part's answer that is not 200 is the whole's.
            assert answer.status == 207
        assert len(upstream.requests) >= 2
        with pytest.raises(aiohttp.ClientError):
            await session.post(f"{url.replace('https', 'http')}{CHAT}", json=HELLO)

    through_the_proxy(check, tls=tls_context((certificate[0], certificate[1])))


def test_a_frontend_that_has_no_worker_yet_says_so() -> None:
    """Dynamo's has no path for completions until then, and answers 404 without a word."""

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        upstream.starting = ""
        for path in (COMPLETIONS, CHAT):
            async with session.post(f"{url}{path}", json=HELLO) as answer:
                assert answer.status == 503
                assert "has not found a worker yet" in (await answer.json())["message"]
        async with session.get(f"{url}/no/such/path") as answer:
            assert answer.status == 404
        upstream.starting = "no such model"
        async with session.post(f"{url}{CHAT}", json=HELLO) as answer:
            assert (answer.status, await answer.text()) == (404, "no such model")

    through_the_proxy(check)


def test_metrics_count_every_answer_also_those_that_dynamos_frontend_never_saw() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        await session.post(f"{url}{CHAT}", json=HELLO)
        await session.post(f"{url}{CHAT}", json={**HELLO, "suffix": "x"})
        await session.post(f"{url}{COMPLETIONS}", data="no json")
        upstream.pause = 60
        async with session.post(f"{url}{COMPLETIONS}", json=HELLO):
            pass
        await upstream.left.wait()
        upstream.pause, upstream.metrics = 0.0, "dynamos_own 1\n"
        told = ""
        # That the client left is known here a moment before the proxy has done with it.
        while 'code="499"' not in told:
            async with session.get(f"{url}/metrics") as answer:
                assert (answer.status, answer.content_type) == (200, "text/plain")
                told = await answer.text()
        assert told.startswith("dynamos_own 1\n")
        for line in (
            f'{{code="207",path="{CHAT}"}} 1.0',
            f'{{code="400",path="{CHAT}"}} 1.0',
            f'{{code="400",path="{COMPLETIONS}"}} 1.0',
            f'{{code="499",path="{COMPLETIONS}"}} 1.0',
        ):
            assert f"wavepp_http_responses_total{line}" in told

    through_the_proxy(check)


def test_who_sends_messages_to_a_model_without_a_chat_template_is_told_what_to_ask_instead() -> None:
    """Dynamo's frontend has no path for chats then, and answers 404 without a word."""

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        upstream.starting = ""
        async with session.post(f"{url}{CHAT}", json=HELLO) as answer:
            assert answer.status == 400
            assert (
                "no chat template, so it takes no messages; ask /v1/completions"
                in (await answer.json())["message"]
            )
        async with session.post(f"{url}{COMPLETIONS}", json=HELLO) as answer:
            assert answer.status == 503

    through_the_proxy(check, chats=False)


def test_a_chat_that_the_template_does_not_take_is_its_clients_mistake() -> None:
    """Dynamo's frontend makes an internal error of it."""

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        upstream.failing = True
        silent = {"messages": [{"role": "assistant", "content": None}]}
        for body, status in ((silent, 400), (HELLO, 500)):
            async with session.post(f"{url}{CHAT}", json=body) as answer:
                assert answer.status == status

    through_the_proxy(check)


def test_the_template_is_asked_about_a_chat_whatever_else_its_body_has() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        upstream.failing = True
        body = {"messages": [{"role": "user"}], "prompt": LONG}
        async with session.post(f"{url}{CHAT}", json=body) as answer:
            assert answer.status == 400
            assert "chat template" in (await answer.json())["message"]

    through_the_proxy(check)


def test_requests_and_answers_pass_unchanged() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        body = b'{"prompt": "h\\u00e4", "n": 1}'
        async with session.post(f"{url}{COMPLETIONS}?a=1", data=body, headers={"x-mark": "m"}) as answer:
            assert (answer.status, answer.headers["x-answer"]) == (207, "yes")
            assert await answer.read() == b"data: one\n\ndata: two\n\n"
        async with session.get(f"{url}/v1/models") as answer:
            assert answer.status == 207
        assert upstream.requests[0] == ("POST", f"{COMPLETIONS}?a=1", body, "m")
        assert upstream.requests[1][:2] == ("GET", "/v1/models")

    through_the_proxy(check)


def test_no_header_is_added_to_a_request_and_no_cookie_of_anothers_answer() -> None:
    heard: list[set[str]] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        heard.append({name.lower() for name in request.headers})
        return web.Response(text="yes", headers={"Set-Cookie": "who=first"})

    async def check() -> None:
        async with proxy_before(handle) as (proxy, _):
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
                writer.write(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX-Mark: m\r\nConnection: close\r\n\r\n")
                assert b"who=first" in await reader.read()
                writer.close()
        assert heard == [{"host", "x-mark"}] * 2

    asyncio.run(check())


def test_s38_an_id_that_a_client_chooses_twice_is_refused_and_the_first_goes_on() -> None:
    """However it is written; a chosen id that is none is not used by the frontend either."""
    name = "f9b975f1-5591-4808-af87-04c1fe94ac43"

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        async def ask(chosen: str) -> tuple[int, bytes]:
            headers = {"x-dynamo-request-id": chosen}
            async with session.post(f"{url}{COMPLETIONS}", json={"prompt": "hi"}, headers=headers) as answer:
                return answer.status, await answer.read()

        upstream.pause = 0.5
        first = asyncio.create_task(ask(name))
        await asyncio.sleep(0.2)
        for again in (name, name.upper(), name.replace("-", ""), f"{{{name}}}", f"urn:uuid:{name}"):
            status, body = await ask(again)
            assert status == 400
            assert f"request id {name} is in use".encode() in body
        assert len(upstream.requests) == 1
        assert await first == (207, b"data: one\n\ndata: two\n\n")
        assert [each[0] for each in await asyncio.gather(ask("same"), ask("same"))] == [207, 207]
        assert (await ask(name))[0] == 207, "it is free again"

    through_the_proxy(check)


def test_a_refusal_never_reaches_the_frontend() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{url}{COMPLETIONS}", json={"prompt": [100], "stream": True}) as answer:
            assert answer.status == 400
            told = await answer.json()
        assert told["code"] == 400
        assert "token id 100" in told["message"]
        assert upstream.requests == []

    through_the_proxy(check)


LONG = [5] * 20_000
FAILED = (
    (400, b'{"message": "data did not match any variant of untagged enum Prompt", "code": 400}'),
    (500, b'{"message": "Failed to fold completions stream", "code": 500}'),
    (200, b'data: {"error": {"message": "Internal server error", "code": 500}}\n\n'),
)


@pytest.mark.parametrize("fails", FAILED, ids=["refused", "failed", "a stream that fails"])
def test_ids_of_a_long_prompt_are_looked_at_once_it_has_failed(fails: tuple[int, bytes]) -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        upstream.fails = fails
        async with session.post(f"{url}{COMPLETIONS}", json={"prompt": [*LONG, 100]}) as answer:
            assert answer.status == 400
            assert "token id 100 is outside the vocabulary" in (await answer.json())["message"]
        assert upstream.failed == 1

    through_the_proxy(check)


def test_a_body_that_is_no_object_is_refused_by_the_frontend_alone() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        for upstream.fails in FAILED[:2]:
            for body in (b"2", b"[]", b'"a"', b"null"):
                for path in (CHAT, COMPLETIONS):
                    async with session.post(url + path, data=body) as answer:
                        assert answer.status == upstream.fails[0]
                        assert "data did" in (said := await answer.text()) or "Failed to fold" in said

    through_the_proxy(check)


def test_a_failure_of_which_a_long_prompt_is_not_to_blame_passes() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        upstream.fails = FAILED[0]
        async with session.post(f"{url}{COMPLETIONS}", json={"prompt": LONG}) as answer:
            assert (answer.status, await answer.read()) == FAILED[0]

    through_the_proxy(check)


def test_a_long_prompt_passes_as_it_came_and_whole_where_its_request_is_written_anew() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        data = json.dumps({"prompt": LONG, "stream": True}).encode()
        for body in (data, json.dumps({"prompt": LONG, "logit_bias": {"7": 1}}).encode()):
            async with session.post(f"{url}{COMPLETIONS}", data=body) as answer:
                assert answer.status == 207
        assert upstream.requests[0][2] == data
        biased = json.loads(upstream.requests[1][2])
        assert biased["prompt"] == LONG
        assert "logit_bias" not in biased
        for more in ({"n": 2}, {"logit_bias": {"7": 1}}, {"suffix": "x"}):
            async with session.post(f"{url}{COMPLETIONS}", json={"prompt": [*LONG, 100], **more}) as answer:
                assert answer.status == 400
        assert len(upstream.requests) == 2

    through_the_proxy(check)


async def answered_beside(
    base: str, session: aiohttp.ClientSession, body: dict[str, Any], seconds: float
) -> list[str]:
    """The order in which 12 large requests are answered, and a sign of life that is asked for so much later."""
    answered: list[str] = []

    async def ask(name: str, method: str, path: str, **options: Any) -> None:
        async with session.request(method, base + path, **options) as answer:
            await answer.read()
        answered.append(name)

    large = [asyncio.create_task(ask("large", "POST", COMPLETIONS, json=body)) for _ in range(12)]
    await asyncio.sleep(seconds)
    await ask("live", "GET", "/live")
    await asyncio.gather(*large)
    return answered


def test_long_prompts_that_failed_are_looked_at_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend_proxy, "LARGE_BODY_BYTES", 10)
    judge = frontend_proxy.refusal

    def slowly(path: str, body: Any, vocab_size: int | None) -> str | None:
        if isinstance(body["prompt"], list):
            time.sleep(0.1)
        return judge(path, body, vocab_size)

    monkeypatch.setattr(frontend_proxy, "refusal", slowly)

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        upstream.fails = FAILED[0]
        answered = await answered_beside(url, session, {"prompt": [*LONG, 100]}, 0.4)
        assert answered.index("live") < 8

    through_the_proxy(check)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{not json", "the body is not JSON"),
        (b"", "the body is not JSON"),
        (b'{"prompt": [' + b"9" * 5000 + b"]}", "the body is not JSON"),
        (b'{"user": ' + b"[" * 100_000, "nests too deeply"),
        (b'{"user": "a\nb", "prompt": [100]}', "token id 100"),
    ],
    ids=["not JSON", "nothing", "a number too long", "too deep", "a bare control character"],
)
def test_what_the_proxy_cannot_read_does_not_pass_unchecked(body: bytes, sentence: str) -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{url}{COMPLETIONS}", data=body) as answer:
            assert answer.status == 400
            assert sentence in (await answer.json())["message"]
        assert upstream.requests == []

    through_the_proxy(check)


def test_a_compressed_body_is_refused() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        for encoding in ("gzip", "deflate"):
            headers = {"Content-Encoding": encoding}
            async with session.post(
                f"{url}{COMPLETIONS}", data=b'{"prompt": [100]}', headers=headers
            ) as answer:
                assert answer.status == 400
        assert upstream.requests == []

    through_the_proxy(check)


def test_a_body_that_is_too_long_or_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "BODY_SECONDS", 0.2)

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        async def never() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(5)

        async with session.post(f"{url}{COMPLETIONS}", data=never()) as answer:
            assert answer.status == 408
        too_long = b" " * (request_bodies.MOST_BODY_BYTES + 1)
        async with session.post(f"{url}{COMPLETIONS}", data=too_long) as answer:
            assert answer.status == 413
            assert "send fewer or shorter prompts" in (await answer.json())["message"]
        assert upstream.requests == []

    through_the_proxy(check)


def test_bodies_take_no_more_memory_than_there_is_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection may send one: thousands of the largest would end the process."""
    monkeypatch.setattr(request_bodies, "BODIES_BYTES", 100 << 10)

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{url}{COMPLETIONS}", data=b" " * (200 << 10)) as answer:
            assert answer.status == 503
            assert "try again shortly" in (await answer.json())["message"]
        async with session.post(f"{url}{COMPLETIONS}", json=HELLO) as answer:
            assert answer.status == 207
        assert len(upstream.requests) == 1

    through_the_proxy(check)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/x/../v1/completions", b"207"),
        ("/v1/./completions", b"207"),
        ("/v1/complet%69ons", b"400"),
        ("http://127.0.0.1:1/v1/completions", b"400"),
        ("/busy_threshold", b"403"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "TRACE"])
def test_a_path_is_passed_on_as_it_was_checked(method: str, target: str, status: bytes) -> None:
    """A client library would take ``..`` out of a path before sending it: this speaks HTTP itself."""

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{method} {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        assert (await reader.read(12)).endswith(status)
        writer.close()
        assert [path for _, path, _, _ in upstream.requests] == [target] * (status == b"207")

    through_the_proxy(check)


def test_a_header_that_chooses_the_worker_is_refused() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        headers = {"X-Worker-Instance-Id": "5"}
        async with session.post(f"{url}{CHAT}", json=HELLO, headers=headers) as answer:
            assert answer.status == 400
        assert upstream.requests == []

    through_the_proxy(check)


async def raw(url: str, head: bytes, *rest: bytes) -> bytes:
    """What a client hears that sends ``head``, and each of ``rest`` after something has come."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    heard = b""
    try:
        for piece in (head, *rest):
            writer.write(piece)
            heard += await asyncio.wait_for(reader.read(4096), 5)
        return heard
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        (b"x-tenant-id: a\r\nX-Tenant-Id: b\r\n", b"the header x-tenant-id is given twice"),
        (b"x-mark: \xff\r\n", b"the header x-mark is not UTF-8"),
        (b"X-Wavepp-Choice: \xff\r\n", b"the header X-Wavepp-Choice is not UTF-8"),
    ],
)
def test_headers_that_others_may_read_otherwise_are_refused(headers: bytes, sentence: bytes) -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        for head in (f"POST {COMPLETIONS}", "GET /v1/models"):
            heard = await raw(url, f"{head} HTTP/1.1\r\nHost: a\r\n".encode() + headers + b"\r\n")
            assert heard.startswith(b"HTTP/1.1 400 ")
            assert sentence in heard
        assert upstream.requests == []

    through_the_proxy(check)


def test_a_client_that_waits_until_its_body_is_wanted_is_told_so() -> None:
    """As curl does with bodies of a megabyte and more."""
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: ".encode()

    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        heard = await raw(url, head + b"100-continue\r\n\r\n", b"{}")
        assert heard.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 207 ")
        assert len(upstream.requests) == 1
        for miracle in (b"a miracle", b"100-continue\r\nExpect: a miracle"):
            heard = await raw(url, head + miracle + b"\r\n\r\n{}")
            assert heard.startswith(b"HTTP/1.1 417 ")
            assert b"leave the header Expect out" in heard
        assert len(upstream.requests) == 1
        # Nobody is to send what is refused anyway.
        for first, then in (
            (head.replace(b"/v1/completions", b"/busy_threshold"), b"403"),
            (head.replace(b"Length: 2", b"Length: 99999999"), b"413"),
            (head.replace(b"Expect", b"Content-Encoding: gzip\r\nExpect"), b"400"),
        ):
            heard = await raw(url, first + b"100-continue\r\n\r\n")
            assert heard.startswith(b"HTTP/1.1 " + then)

    through_the_proxy(check)


def test_who_asks_to_leave_http_is_refused_with_a_sentence() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        async with session.get(url, headers={"Connection": "Upgrade", "Upgrade": "websocket"}) as answer:
            assert answer.status == 400
            assert "ask without CONNECT and without Upgrade" in (await answer.json())["message"]
        # As curl offers it, which goes on without.
        async with session.get(url, headers={"Connection": "Upgrade", "Upgrade": "h2c"}) as answer:
            assert answer.status == 207
        assert len(upstream.requests) == 1

    through_the_proxy(check)


def test_a_client_that_leaves_amid_its_body_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await asyncio.sleep(0.3)
        async with session.get(f"{url}/v1/models") as answer:
            assert answer.status == 207

    through_the_proxy(check)
    assert caplog.records == []


def test_pieces_are_passed_on_as_they_come_and_a_client_that_leaves_is_noticed() -> None:
    async def check(url: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        upstream.pause = 10.0
        async with session.post(f"{url}{CHAT}", json=HELLO) as answer:
            piece = await asyncio.wait_for(answer.content.readany(), 2)
            assert piece == b"data: one\n\n"
        await asyncio.wait_for(upstream.left.wait(), 3)

    through_the_proxy(check)


def test_a_frontend_that_is_not_up_is_503_and_a_taken_port_is_named() -> None:
    async def main() -> None:
        nowhere, port = _ports(2)
        proxy, second = (
            FrontendProxy(f"http://127.0.0.1:{nowhere}", None),
            FrontendProxy("http://127.0.0.1:1", None),
        )
        await proxy.start("127.0.0.1", port)
        try:
            with pytest.raises(ConfigError, match=f"--http-port: cannot listen on 127.0.0.1:{port}"):
                await second.start("127.0.0.1", port)
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}/health") as answer,
            ):
                assert answer.status == 503
        finally:
            await proxy.close()
            await second.close()

    asyncio.run(main())


def test_bodies_that_take_long_to_judge_let_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher ends a frontend that does not say in time that it lives."""
    monkeypatch.setattr(frontend_proxy, "LARGE_BODY_BYTES", 10)
    judge = FrontendProxy._check

    def slowly(self: FrontendProxy, request: web.BaseRequest, body: bytes) -> None:
        if body:
            time.sleep(0.1)
        judge(self, request, body)

    monkeypatch.setattr(FrontendProxy, "_check", slowly)

    async def check(base: str, upstream: Upstream, session: aiohttp.ClientSession) -> None:
        answered = await answered_beside(base, session, HELLO, 0.25)
        assert answered.index("live") < 6

    through_the_proxy(check)
