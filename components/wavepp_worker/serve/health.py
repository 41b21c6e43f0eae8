"""What processes say of themselves over HTTP."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Collection
from typing import Any
from urllib.parse import quote

import msgspec

from wavepp_worker.serve.log_lines import PROBE
from wavepp_worker.worker_description import WorkerDescription

MOST_BYTES = 64 << 20
"""Of an answer: who says more says nothing that is of use."""


async def _fetch(url: str, timeout: float, data: bytes | None = None) -> tuple[int, bytes]:
    # Imported late, as most commands ask nobody.
    import aiohttp

    # By this id, its lines are left out of the log.
    headers = {"x-dynamo-request-id": PROBE + secrets.token_hex(6), "Accept-Encoding": "identity"}
    if data:
        headers["Content-Type"] = "application/json"
    # These are asked for a sign of life alone, by their addresses, where certificates are of names.
    connector = aiohttp.TCPConnector(ssl=False)
    # Of the whole answer: one that comes byte by byte is none.
    limits = aiohttp.ClientTimeout(total=timeout)
    method = "GET" if data is None else "POST"
    try:
        # A proxy configured for the outside is not used: it must not see what goes to loopback.
        async with (
            aiohttp.ClientSession(connector=connector, timeout=limits, auto_decompress=False) as session,
            session.request(method, url, data=data, headers=headers, allow_redirects=False) as answer,
        ):
            body = bytearray()
            async for part in answer.content.iter_any():
                body += part
                if len(body) > MOST_BYTES:
                    return 0, b""
            return answer.status, bytes(body)
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError):
        return 0, b""


async def get(url: str, timeout: float = 2.0, data: bytes | None = None) -> tuple[int, Any]:
    """Status and JSON body of ``url``, to which ``data`` is posted if it is given.

    The status is 0 if nobody has answered within ``timeout`` seconds; the body is None if it is not JSON.
    """
    status, body = await _fetch(url, timeout, data)
    try:
        return status, json.loads(body)
    except (ValueError, RecursionError):
        return status, None


async def control(url: str, name: str, body: dict[str, Any], timeout: float = 10.0) -> Any:
    """What the worker at ``url`` answers to an engine control; None if it has not within ``timeout`` seconds."""
    return (await get(f"{url}/engine/control/{quote(name, safe='')}", timeout, json.dumps(body).encode()))[1]


async def describe(url: str) -> WorkerDescription | None:
    """What the worker at ``url`` says of itself; None if it does not say."""
    try:
        return msgspec.convert(await control(url, "describe", {}, 2.0), WorkerDescription)
    except msgspec.ValidationError:
        return None


async def metrics(url: str) -> str:
    """The metrics of the process at ``url``, in Prometheus' text format; empty if it does not answer."""
    status, body = await _fetch(f"{url}/metrics", 2.0)
    return body.decode(errors="replace") if status == 200 else ""


async def listed_models(base_url: str) -> list[str]:
    """The models a frontend offers."""
    _, body = await get(f"{base_url}/v1/models")
    models = body.get("data") if isinstance(body, dict) else None
    return [str(model.get("id")) for model in models or ()]


async def known_workers(base_url: str, endpoints: Collection[str]) -> int:
    """The instances that a frontend would send requests to.

    Args:
        endpoints: what workers call the one that they serve; they have others beside it.
    """
    _, body = await get(f"{base_url}/health")
    instances = body.get("instances") if isinstance(body, dict) else None
    return len({entry.get("instance_id") for entry in instances or () if entry.get("endpoint") in endpoints})
