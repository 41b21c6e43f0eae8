"""The measuring commands run to their end and print what they promise; on small inputs, so the figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_admission() -> None:
    small = ("--tokens", "4000", "--concurrency", "8", "--batch", "4", "--turns", "1", "--pp", "2")
    printed = run("bench.admission", *small)
    for step in ("look-up: two walks", "look-up: hint index", "discovery: hint index", "lease", "commit"):
        assert step in printed
    assert "rounds per admitted request: hint index" in printed


def test_trace(tmp_path: Path) -> None:
    """Two conversations of two turns each: the second turn reuses the first."""
    trace, timeline = tmp_path / "trace.jsonl", tmp_path / "timeline.json"
    lines = [
        {"timestamp": 4000 * turn, "input_length": 512 * (turn + 2), "output_length": 1, "hash_ids": ids}
        for turn in range(2)
        for ids in ([1, 2, 3][: turn + 2], [4, 5, 6][: turn + 2])
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    printed = run(
        "bench.trace", str(trace), "--policy", "lockstep", "--policy", "mpu", "--timeline", str(timeline)
    )
    assert "lockstep" in printed
    assert "mpu" in printed
    assert printed.count("40.0%") == 3, "what could be reused, and what each policy reused"
    assert json.loads(timeline.read_text())["traceEvents"]
