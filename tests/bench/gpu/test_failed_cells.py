"""A cell for which a card has no room: its line says so, and the others are measured."""

from __future__ import annotations

import pytest

from bench.gpu.__main__ import Row, _attempt, _print


def test_a_cell_that_fails_is_a_line_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def no_room() -> Row:
        raise RuntimeError("CUDA out of memory.\nmore")

    fine = Row("1b", "cold:1:1:1", "P=2", 1234.0, 0.5, 0.0, 0.1, 0.2, {})
    rows = [_attempt("1b", "cold:1:1:1", "P=1", no_room), _attempt("1b", "cold:1:1:1", "P=2", lambda: fine)]
    assert rows == [
        Row("1b", "cold:1:1:1", "P=1", 0.0, 0.0, 0.0, 0.0, 0.0, {}, "CUDA out of memory."),
        fine,
    ]
    _print(rows, "a card", 1e12)
    said = capsys.readouterr()
    assert "P=1: failed: CUDA out of memory." in said.err
    assert "CUDA out of memory." in said.out
    assert "1,234" in said.out
