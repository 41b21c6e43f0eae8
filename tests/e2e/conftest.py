"""Whole graphs as a user starts them, and a tiny model that answers in plain ASCII."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.ascii_model import make_ascii_model
from tests.support.graph_process import REPOSITORY, serve_graph
from tests.support.reference import Reference
from tests.support.served_graph import ServedGraph

POISON = 290
"""A token whose embedding is no number; no other prompt has it, and no answer."""


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
def agg(ascii_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGraph]:
    """A graph of one worker, which parses what it says, and for which ``POISON`` makes logits that are no numbers."""
    model = tmp_path_factory.mktemp("poisoned") / "tiny-ascii"
    shutil.copytree(ascii_model, model)
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    words = (
        f"--Common.model={model}",
        "--Common.dtype=float32",
        "--Worker.pp=2",
        "--Worker.dyn_tool_call_parser=hermes",
        "--Worker.dyn_reasoning_parser=deepseek_r1",
    )
    with (
        serve_graph("graphs:agg_wavepp", *words, cwd=REPOSITORY) as running,
        httpx.Client(base_url=running.base_url, timeout=120) as client,
    ):
        yield ServedGraph(running, client)


@pytest.fixture(scope="session")
def reference(ascii_model: Path) -> Reference:
    """transformers' ``ascii_model``."""
    return Reference(ascii_model)
