"""The graph that is fuzzed: a small one with every kind of process and port, whose answers are short."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.support.graph_process import REPOSITORY, serve_graph
from tests.support.served_graph import ServedGraph

GRAPHS = {
    "disagg_wavepp": ("--PrefillWorker.ServiceArgs.workers=1",),
    "agg_wavepp": (),
}
MAX_MODEL_LEN = 1024
"""So that no answer is long, whatever a request asks for."""


@contextlib.contextmanager
def fuzzed_graph(name: str, model: Path) -> Iterator[ServedGraph]:
    """Bring it up; afterwards it has to stop in order and leave nothing.

    Args:
        name: one of ``GRAPHS``.
        model: a directory.
    """
    words = (
        *GRAPHS[name],
        f"--Common.model={model}",
        "--Common.dtype=float32",
        f"--Common.max_model_len={MAX_MODEL_LEN}",
    )
    with (
        serve_graph(f"graphs:{name}", *words, cwd=REPOSITORY) as running,
        httpx.Client(base_url=running.base_url, timeout=120) as client,
    ):
        yield ServedGraph(running, client)
