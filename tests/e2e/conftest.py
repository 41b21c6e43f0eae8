"""Whole graphs as a user starts them, and a tiny model that answers in plain ASCII."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.ascii_model import make_ascii_model
from tests.support.graph_process import REPOSITORY, serve_graph
from tests.support.reference import Reference
from tests.support.served_graph import ServedGraph


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., ServedGraph]]:
    """Call with a graph, overrides and ``env``; it is stopped at the end of the module, and must leave nothing."""
    stacks: list[contextlib.ExitStack] = []

    def start_graph(graph: str, *overrides: str, env: Mapping[str, str] | None = None) -> ServedGraph:
        stack = contextlib.ExitStack()
        stacks.append(stack)
        running = stack.enter_context(serve_graph(graph, *overrides, env=env, cwd=REPOSITORY))
        client = stack.enter_context(httpx.Client(base_url=running.base_url, timeout=120))
        return ServedGraph(running, client)

    yield start_graph
    # All at once: a graph that stops mostly waits.
    with ThreadPoolExecutor() as pool:
        list(pool.map(contextlib.ExitStack.close, stacks))


@pytest.fixture(scope="session")
def ascii_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose text shows its tokens."""
    return make_ascii_model(tmp_path_factory.mktemp("e2e") / "tiny-ascii")


@pytest.fixture(scope="session")
def reference(ascii_model: Path) -> Reference:
    """transformers' ``ascii_model``."""
    return Reference(ascii_model)
