"""A cell for which a card has no room: its line says so, and the others are measured."""

from __future__ import annotations

import pytest

from bench.gpu.__main__ import _attempt, _sides
from bench.gpu.rows import Row, print_rows
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
