"""What processes say of themselves over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import secrets
import ssl
import urllib.error
import urllib.request
from typing import Any

import msgspec

from wavepp_worker.serve.log_lines import PROBE
from wavepp_worker.worker_description import WorkerDescription

# A proxy configured for the outside must not see what goes to loopback.
_direct = urllib.request.build_opener(
    urllib.request.ProxyHandler({}),
    # These are asked for a sign of life alone, by their addresses, where certificates are of names.
    urllib.request.HTTPSHandler(context=ssl._create_unverified_context()),
)


def _fetch(url: str, timeout: float, data: bytes | None = None) -> tuple[int, bytes]:
    # By this id, its lines are left out of the log.
    headers = {"x-dynamo-request-id": PROBE + secrets.token_hex(6)}
    request = urllib.request.Request(
        url, data, headers | ({"Content-Type": "application/json"} if data else {})
    )
    try:
        with _direct.open(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, http.client.HTTPException):
        return 0, b""


def _get(url: str, timeout: float, data: bytes | None = None) -> tuple[int, Any]:
    status, body = _fetch(url, timeout, data)
    try:
        return status, json.loads(body)
    except ValueError:
        return status, None


async def get(url: str, timeout: float = 2.0) -> tuple[int, Any]:
    """Status and JSON body of ``url``.

    The status is 0 if nobody answers within ``timeout`` seconds; the body is None if it is not JSON.
    """
    return await asyncio.to_thread(_get, url, timeout)


async def describe(url: str) -> WorkerDescription | None:
    """What the worker at ``url`` says of itself; None if it does not say."""
    _, body = await asyncio.to_thread(_get, f"{url}/engine/control/describe", 2.0, b"{}")
    try:
        return msgspec.convert(body, WorkerDescription)
    except msgspec.ValidationError:
        return None


def answered_control(url: str, name: str, body: dict[str, Any], timeout: float) -> Any:
    """What the worker at ``url`` answers to an engine control; None if it does not within ``timeout`` seconds."""
    return _get(f"{url}/engine/control/{name}", timeout, json.dumps(body).encode())[1]


async def control(url: str, name: str, body: dict[str, Any], timeout: float = 10.0) -> Any:
    """As ``answered_control``, for asyncio."""
    return await asyncio.to_thread(answered_control, url, name, body, timeout)


async def metrics(url: str) -> str:
    """The metrics of the process at ``url``, in Prometheus' text format; empty if it does not answer."""
    status, body = await asyncio.to_thread(_fetch, f"{url}/metrics", 2.0)
    return body.decode(errors="replace") if status == 200 else ""


async def listed_models(base_url: str) -> list[str]:
    """The models a frontend offers."""
    _, body = await get(f"{base_url}/v1/models")
    models = body.get("data") if isinstance(body, dict) else None
    return [str(model.get("id")) for model in models or ()]


async def known_workers(base_url: str) -> int:
    """The instances that a frontend would send requests to."""
    _, body = await get(f"{base_url}/health")
    instances = body.get("instances") if isinstance(body, dict) else None
    return len({entry.get("instance_id") for entry in instances or () if entry.get("endpoint") == "generate"})
