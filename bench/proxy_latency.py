"""What the proxy before Dynamo's frontend adds to an answer.

``python -m bench.proxy_latency [--requests 150]`` asks a stand-in for the frontend, which answers at once, directly and
through the proxy in turn, and prints medians until the first byte of the answer. Client, proxy and frontend are
processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Annotated, Any

import aiohttp
import typer
import uvloop
from aiohttp import web
from rich.console import Console
from wavepp_worker.dynamo.frontend_proxy import FrontendProxy

from bench.common.origin import origin_now
from bench.common.percentile import p95
from bench.common.tables import plain_table, print_table

VOCABULARY = 50_000
WARM_UP = 20
START_SECONDS = 60.0


def _ids(count: int) -> dict[str, Any]:
    return {"prompt": [1000 + number for number in range(count)]}


def _chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat, 100 characters": ("/v1/chat/completions", _chat("x" * 100)),
    "chat, 32,500 characters": ("/v1/chat/completions", _chat("word " * 6500)),
    "64 token ids": ("/v1/completions", _ids(64)),
    "64 token ids, stream": ("/v1/completions", {**_ids(64), "stream": True}),
    "4,000 token ids": ("/v1/completions", _ids(4000)),
    "32,000 token ids": ("/v1/completions", _ids(32_000)),
}


async def _answer(request: web.BaseRequest) -> web.StreamResponse:
    if not json.loads(await request.read()).get("stream"):
        return web.json_response({"text": "right"})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"n": 1}\n\ndata: [DONE]\n\n')
    await response.write_eof()
    return response


async def _listen() -> int:
    runner = web.ServerRunner(web.Server(_answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


async def _pass_on(frontend: int) -> int:
    proxy = FrontendProxy(f"http://127.0.0.1:{frontend}", VOCABULARY)
    await proxy.start("127.0.0.1", 0)
    return proxy.port


def _run(start: Callable[..., Awaitable[int]], told: Connection, *arguments: int) -> None:
    async def main() -> None:
        told.send(await start(*arguments))
        await asyncio.Event().wait()

    # As ``frontend.main()`` runs it.
    uvloop.run(main())


def _started(start: Callable[..., Awaitable[int]], *arguments: int) -> int:
    """The port of a server in a process that ends with this one."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    context.Process(target=_run, args=(start, there, *arguments), daemon=True).start()
    if not here.poll(START_SECONDS):
        raise RuntimeError(f"a server did not listen within {START_SECONDS:.0f} s")
    return int(here.recv())


async def _seconds(session: aiohttp.ClientSession, url: str, data: bytes) -> float:
    begun = time.perf_counter()
    async with session.post(url, data=data, headers={"Content-Type": "application/json"}) as answer:
        answer.raise_for_status()
        await answer.content.readany()
        first = time.perf_counter() - begun
        await answer.read()
    return first


async def measure(direct: int, proxied: int, requests: int) -> dict[str, tuple[list[float], list[float]]]:
    """Of each case, seconds of the requests to the frontend's port and of those to the proxy's."""
    rows: dict[str, tuple[list[float], list[float]]] = {}
    async with aiohttp.ClientSession() as session:
        for name, (path, body) in CASES.items():
            data = json.dumps({"model": "m", "max_tokens": 16, **body}).encode()
            times: tuple[list[float], list[float]] = ([], [])
            rows[name] = times
            for number in range(-WARM_UP, requests):
                for port, taken in zip((direct, proxied), times, strict=True):
                    seconds = await _seconds(session, f"http://127.0.0.1:{port}{path}", data)
                    if number >= 0:
                        taken.append(seconds)
    return rows


def main(
    requests: Annotated[int, typer.Option(min=1, help="Of each case, to each of the two.")] = 150,
) -> None:
    """Print what each kind of request takes without the proxy and with it, in milliseconds."""
    origin, direct = origin_now(), _started(_listen)
    rows = asyncio.run(measure(direct, _started(_pass_on, direct), requests))
    table = plain_table(
        f"milliseconds until the first byte of an answer, medians of {requests}",
        f"measured at {origin}",
        texts=["request"],
        numbers=["frontend", "proxy", "added", "added, p95"],
    )
    for name, times in rows.items():
        middle = [1000 * statistics.median(each) for each in times]
        late = [1000 * p95(each) for each in times]
        figures = (*middle, middle[1] - middle[0], late[1] - late[0])
        table.add_row(name, *(f"{figure:.2f}" for figure in figures))
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
