"""What ``bench.gpu`` counts, over which engines, and what it says of cells that fail."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from wavepp_worker import EngineConfig, token_ids

import bench.gpu.__main__ as gpu
from bench.gpu.__main__ import _attempt, _sides
from bench.gpu.rows import Row, print_rows
from bench.gpu.shapes import SHAPES
from bench.vllm.cells import traffic_of


def test_a_cell_that_fails_is_a_line_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def no_room() -> Row:
        raise RuntimeError("CUDA out of memory.\nmore")

    fine = Row("1b", "cold:1:1:1", "P=2", 1234.0, 0.5, 0.0, 0.1, 0.2, {})
    rows = [_attempt("1b", "cold:1:1:1", "P=1", no_room), _attempt("1b", "cold:1:1:1", "P=2", lambda: fine)]
    assert rows == [
        Row("1b", "cold:1:1:1", "P=1", 0.0, 0.0, 0.0, 0.0, 0.0, {}, "CUDA out of memory."),
        fine,
    ]
    print_rows(rows, "a card", 1e12)
    said = capsys.readouterr()
    assert "P=1: failed: CUDA out of memory." in said.err
    assert "CUDA out of memory." in said.out
    assert "1,234" in said.out


def test_what_the_pipeline_loses_is_said_beside_what_sharing_the_card_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rates = {"P=1": 1000.0, "P=2": 760.0, "2 of P=1": 800.0, "transformers": 500.0}
    print_rows(
        [Row("1b", "cold:1:1:1", side, rate, 0.5, 0.0, 0.1, 0.2, {}) for side, rate in rates.items()],
        "a card",
        1e12,
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if "P=2" in line]
    assert lines[-1].split()[3:6] == ["760", "0.76", "0.95"]


@pytest.mark.parametrize(
    ("cell", "kv_tokens", "sides"),
    [
        ("cold:64:4:8", 1000, [(1, 1), (2, 1), (1, 2), (4, 1), (1, 4)]),
        ("cold:64:3:8", 1000, [(1, 1), (2, 1), (1, 2), (4, 1)]),
        ("cold:64:4:8", 280, [(1, 1), (2, 1), (1, 2), (4, 1)]),
        ("reuse:64:4:8", 1000, [(1, 1), (2, 1), (4, 1)]),
    ],
    ids=["all", "too few clients", "no room for a prompt", "shared prefixes"],
)
def test_engines_side_by_side_are_measured_where_they_do_the_same(
    cell: str, kv_tokens: int, sides: list[tuple[int, int]]
) -> None:
    assert list(_sides(cell, traffic_of(cell, 7, 300), (1, 2, 4), kv_tokens)) == sides


class Engine:
    """Answers each prompt, of which it knows the first half, and was idle for a second in each stage."""

    made: ClassVar[list[Engine]] = []

    def __init__(self, config: EngineConfig) -> None:
        self.config, self.prompts, self.asked = config, [], 0
        Engine.made.append(self)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def prefill(self, prompt: Any) -> None: ...

    def stats(self) -> Any:
        self.asked += 1
        ranks = [SimpleNamespace(idle={"admission": float(self.asked), "no_requests": 9.0})] * self.config.pp
        return SimpleNamespace(ranks=ranks)


def send(engine: Engine, prompts: list[bytes], clients: int, name: str) -> list[Any]:
    engine.prompts, engine.clients = prompts, clients
    timings = SimpleNamespace(total=0.5)
    return [SimpleNamespace(prompt_tokens=64, reused_tokens=32, timings=timings) for _ in prompts]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    Engine.made = []
    clock = count(step=4.0)
    monkeypatch.setattr(gpu, "PrefillEngine", Engine)
    monkeypatch.setattr(gpu, "send_all", send)
    monkeypatch.setattr(
        gpu, "time", SimpleNamespace(perf_counter=lambda: next(clock), sleep=lambda seconds: None)
    )


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("engines", [1, 2])
def test_a_rows_figures_are_of_what_was_computed_in_the_time_of_all(engines: int, tmp_path: Path) -> None:
    traffic = traffic_of("cold:64:4:8", 7, 300)
    config = EngineConfig(model=tmp_path, pp=1)
    row = gpu.ours("1b", "cold:64:4:8", traffic, config, 1e12, engines)
    assert row.side == ("P=1" if engines == 1 else "2 of P=1")
    assert row.tokens_per_second == 8 * 64 / 4.0
    flops = SHAPES["1b"].flops([(64, 32)] * 8, trimmed=True)
    assert row.utilisation == pytest.approx(flops / 4.0 / 1e12)
    assert (row.reused, row.p50) == (0.5, 0.5)
    assert row.idle == {"admission": float(engines)}
    sent = [prompt for engine in Engine.made for prompt in engine.prompts]
    assert sorted(sent) == sorted(map(token_ids.pack, traffic.prompts)), "each prompt by one engine"
    assert {engine.clients for engine in Engine.made} == {4 // engines}
    assert {len(engine.prompts) for engine in Engine.made} == {8 // engines}


def test_engines_side_by_side_share_the_cards_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[int, int, int]] = []

    def ours(name: str, cell: str, traffic: Any, config: EngineConfig, rate: float, engines: int) -> Row:
        asked.append((config.pp, engines, config.kv_tokens))
        return Row(name, cell, "P=1", 1.0, 0.5, 0.0, 0.1, 0.1, {})

    monkeypatch.setattr(gpu, "ours", ours)
    monkeypatch.setattr(
        gpu, "plain", lambda *given: Row("tiny", "c", "transformers", 1.0, 0.5, 0, 0.1, 0.1, {})
    )
    monkeypatch.setattr(gpu, "matmul_rate", lambda device: 1e12)
    gpu.main("cpu", ["tiny"], ["cold:64:2:4"], [1, 2], 128, 16, 4096, 7, tmp_path / "kept.json")
    assert asked == [(1, 1, 4096), (2, 1, 4096), (1, 2, 2048)]
    assert len(json.loads((tmp_path / "kept.json").read_text())["rows"]) == 4
