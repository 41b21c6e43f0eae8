"""Whole graphs as a user starts them, a tiny model that answers in plain ASCII, and a client."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support import tiny_models

ROOT = Path(__file__).parents[2]


def _support() -> ModuleType:
    path = ROOT / "tests" / "support" / "graph_process.py"
    spec = importlib.util.spec_from_file_location("graph_process", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["graph_process"] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Graph:
    """A running graph and a client of its frontend."""

    running: Any
    http: httpx.Client

    def complete(self, prompt: list[int] | str, **options: Any) -> dict[str, Any]:
        """POST /v1/completions; fails on anything but 200."""
        answer = self.post("/v1/completions", prompt=prompt, **options)
        assert answer.status_code == 200, f"{answer.status_code} {answer.text}\n{self.running.log()[-4000:]}"
        return answer.json()

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json={"model": self.running.model, "temperature": 0, **body})

    def workers(self, service: str) -> list[dict[str, Any]]:
        return self.running.processes(service)

    def control(self, worker: dict[str, Any], name: str, **body: Any) -> dict[str, Any]:
        """An engine control of one worker."""
        url = f"http://127.0.0.1:{worker['port']}/engine/control/{name}"
        return httpx.post(url, json=body, timeout=60).json()

    def metric(self, worker: dict[str, Any], name: str) -> float:
        """The sum of a worker's samples of one metric."""
        text = httpx.get(f"http://127.0.0.1:{worker['port']}/metrics", timeout=30).text
        lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
        assert lines, f"no metric {name} in\n{text}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def audit(self) -> None:
        """Every worker proves that it leaked nothing."""
        for service in ("PrefillWorker", "DecodeWorker", "Worker"):
            for worker in self.workers(service):
                answer = self.control(worker, "audit")
                assert answer.get("status") == "ok", f"{service}: {answer}"


StartGraph = Callable[..., Any]


@pytest.fixture(scope="session")
def graph_process() -> ModuleType:
    return _support()


@pytest.fixture(scope="module")
def start(graph_process: ModuleType) -> Iterator[Callable[..., Graph]]:
    """Call with a graph and overrides; it is stopped at the end of the module, and must leave nothing."""
    stacks: list[contextlib.ExitStack] = []

    def start_graph(graph: str, *overrides: str) -> Graph:
        stack = contextlib.ExitStack()
        stacks.append(stack)
        running = stack.enter_context(graph_process.serve_graph(graph, *overrides, cwd=ROOT))
        client = stack.enter_context(httpx.Client(base_url=running.base_url, timeout=120))
        return Graph(running, client)

    yield start_graph
    # All at once: a graph that stops mostly waits.
    with ThreadPoolExecutor() as pool:
        list(pool.map(contextlib.ExitStack.close, stacks))


@pytest.fixture(scope="session")
def ascii_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that only answers printable ASCII, one byte a token, so that text shows its tokens."""
    directory = tiny_models.make_model(tmp_path_factory.mktemp("e2e") / "tiny-ascii", "llama")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    printable = {tokenizer.convert_tokens_to_ids(chr(code)) for code in range(33, 127)}
    silent = torch.tensor([token not in printable for token in range(len(weights["lm_head.weight"]))])
    weights["lm_head.weight"][silent] = 0.0
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


class Reference:
    """transformers' own greedy ``generate`` in float32."""

    def __init__(self, directory: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(directory)

    @torch.inference_mode()
    def text(self, prompt: list[int], max_tokens: int) -> str:
        """What the model answers, as a server shows it: without the token that ended the answer."""
        ids = torch.tensor([prompt])
        # Without a mask, generate takes padding ids in the prompt for padding.
        output = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
        )
        return self.tokenizer.decode(output[0, len(prompt) :], skip_special_tokens=True)


@pytest.fixture(scope="session")
def reference(ascii_model: Path) -> Reference:
    return Reference(ascii_model)
