"""Hand-off halves that close themselves, over each transport, and what tests wait with."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from wavepp_worker.handoff.nixl.library import nixl_installed

from tests.support.handoff_sides import Decode, Prefill


@pytest.fixture(params=["socket", "nixl"])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "nixl" and not nixl_installed():
        pytest.skip("NIXL is not installed; pip install '.[nixl]' has these tests run over it, too")
    return name


@pytest.fixture
def prefill() -> Iterator[Callable[..., Prefill]]:
    with contextlib.ExitStack() as stack:

        def make(*args: Any, **values: Any) -> Prefill:
            made = Prefill(*args, **values)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def decode() -> Iterator[Callable[..., Decode]]:
    with contextlib.ExitStack() as stack:

        def make(**values: Any) -> Decode:
            made = Decode(**values)
            stack.callback(made.receiver.close)
            return made

        yield make


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """``await until(condition)``: bounded, for what other threads do."""

    async def wait(condition: Callable[[], object], seconds: float = 8.0) -> None:
        latest = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < latest, "waited in vain"
            await asyncio.sleep(0.005)

    return wait


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    latest = time.monotonic() + 5
    while left := [thread for thread in threading.enumerate() if thread not in before and thread.is_alive()]:
        assert time.monotonic() < latest, f"threads left: {left}"
        time.sleep(0.01)
