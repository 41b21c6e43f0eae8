"""Whole graphs, most of whose processes begin with torch imported, and a tiny model that answers in plain ASCII."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
GRACE_SECONDS = 8
"""How long a worker that is told to stop goes on outside of discovery; others leave within half of it."""
STOP_SECONDS = 60
"""In which it has to end what it answers."""


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., ServedGraph]]:
    """Call as ``served``; the graph is stopped at the end of the module, and must leave nothing."""
    stacks: list[contextlib.ExitStack] = []

    def start_graph(*words: str, **how: Any) -> ServedGraph:
        stack = contextlib.ExitStack()
        stacks.append(stack)
        return stack.enter_context(served(*words, **how))

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
    """A graph of one worker, which parses what it says, and for which ``POISON`` makes logits that are no numbers.

    There is no NATS server where its environment says, and it needs none.
    """
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
    with nobody() as port:
        env = {"NATS_SERVER": f"nats://127.0.0.1:{port}", "NATS_AUTH_TOKEN": "t"}
        with served("graphs:agg_wavepp", *words, env=env) as graph:
            yield graph


@pytest.fixture(scope="session")
def one_of_each(ascii_model: Path) -> Iterator[ServedGraph]:
    """One prefill worker of one rank and one decode worker, for what happens to a worker and comes to its end."""
    words = (
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        "--PrefillWorker.pp=1",
        "--PrefillWorker.ServiceArgs.workers=1",
        f"--PrefillWorker.ServiceArgs.envs.DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS={GRACE_SECONDS}",
        f"--stop-timeout={STOP_SECONDS}",
    )
    with served("graphs:disagg_wavepp", *words) as graph:
        yield graph


@contextlib.contextmanager
def served(
    graph: str, *words: str, env: Mapping[str, str] | None = None, warm: bool = True
) -> Iterator[ServedGraph]:
    """A graph of this repository that is ready, and a client of it; as of ``serve_graph``."""
    with (
        serve_graph(graph, *words, env=env, cwd=REPOSITORY, warm=warm) as running,
        httpx.Client(base_url=running.base_url, timeout=120) as client,
    ):
        yield ServedGraph(running, client)


@contextlib.contextmanager
def nobody() -> Iterator[int]:
    """A port that is taken, at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture(scope="session")
def reference(ascii_model: Path) -> Reference:
    """transformers' ``ascii_model``."""
    return Reference(ascii_model)
