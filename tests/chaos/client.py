"""Sends one request over a connection of its own, and notes what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

from tests.chaos.judge import Reply
from tests.chaos.workload import Ask, Manner

BOUND_SECONDS = 120.0
"""An answer or an error has to be there by then: the workers' limit of 60 s, the longest stop, and some room."""


class Client:
    """Asks one frontend; an asynchronous context manager."""

    def __init__(self, base_url: str, model: str, now: Callable[[], float]) -> None:
        """``now`` gives seconds after the load began."""
        self._url = f"{base_url}/v1/completions"
        self._model = model
        self._now = now
        # A connection for each request: a frontend that was killed breaks only what was under way.
        self._http = httpx.AsyncClient(
            timeout=None, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, ask: Ask) -> Reply:
        """Never raises, and returns within ``BOUND_SECONDS``."""
        notes: dict[str, Any] = {}
        began = self._now()
        limit = ask.patience if ask.manner is Manner.ABORTED else BOUND_SECONDS
        try:
            await asyncio.wait_for(self._send(ask, notes), limit)
        except asyncio.TimeoutError:
            notes["left" if ask.manner is Manner.ABORTED else "late"] = True
        except httpx.TransportError as error:
            notes["broken"] = f"{type(error).__name__}: {error}"
        return Reply(ask.number, round(began, 3), round(self._now(), 3), **notes)

    async def _send(self, ask: Ask, notes: dict[str, Any]) -> None:
        body = {"model": self._model, **ask.body}
        async with self._http.stream("POST", self._url, json=body) as answer:
            notes["status"] = answer.status_code
            if answer.status_code == 200 and body.get("stream"):
                await _read_stream(answer, notes)
            else:
                _read_whole(await answer.aread(), notes)


def _read_whole(content: bytes, notes: dict[str, Any]) -> None:
    try:
        body = json.loads(content)
        if notes["status"] == 200:
            (choice,) = body["choices"]
            notes.update(text=choice["text"], finishes=[choice["finish_reason"]], done=True)
        else:
            notes["error"] = _sentence(body)
    except (ValueError, KeyError, TypeError):
        # What is not JSON says nothing; the judge finds neither an answer nor an error.
        return


async def _read_stream(answer: httpx.Response, notes: dict[str, Any]) -> None:
    notes.update(text="", finishes=[])
    async for line in answer.aiter_lines():
        if not line.startswith("data: "):
            # Dynamo writes what went wrong as an event's comment.
            if line.startswith(": ") and not notes.get("error"):
                notes["error"] = line[2:]
            continue
        if line == "data: [DONE]":
            notes["done"] = True
            continue
        piece = json.loads(line[6:])
        if "choices" not in piece:
            notes["error"] = _sentence(piece)
            continue
        for choice in piece["choices"]:
            notes["text"] += choice.get("text") or ""
            if choice.get("finish_reason"):
                notes["finishes"].append(choice["finish_reason"])


def _sentence(body: Any) -> str:
    error = body.get("error", body)
    return str(error.get("message", "") if isinstance(error, dict) else error)
