"""Commands whose standard output cannot be written say so in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from wavepp_worker.serve import guard

WAVEPP = (sys.executable, "-c", "from wavepp_worker.cli import app; app()")
DYNAMO = (sys.executable, "-c", "from wavepp_worker.serve.cli import app; app()")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a run without processes, whose launcher lives."""
    directory = tmp_path_factory.mktemp("run")
    state = {
        "graph": "mine",
        "pid": os.getpid(),
        "ready": True,
        "base_url": None,
        "model": None,
        "processes": [],
    }
    (directory / "state.json").write_text(json.dumps(state))
    environment = {**os.environ, guard.MARK: str(directory)}
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE
    ) as process:
        yield str(directory)
        process.kill()


def ended(words: list[str], out: int) -> tuple[int, str]:
    done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        [*WAVEPP, "status", "--run-dir", "RUN"],
        [*WAVEPP, "top", "--once", "--run-dir", "RUN"],
        [*WAVEPP, "why", "--json", "--run-dir", "RUN"],
        [*WAVEPP, "inspect", "MODEL"],
        [*DYNAMO, "serve"],
    ],
    ids=lambda words: words[3],
)
def test_a_full_disk_is_named(words: list[str], run_dir: str, tiny_llama: Path) -> None:
    words = [{"RUN": run_dir, "MODEL": str(tiny_llama)}.get(word, word) for word in words]
    with open("/dev/full", "w") as full:
        code, said = ended(words, full.fileno())
    assert said == (
        "error: standard output cannot be written: No space left on device; make room there, or send it elsewhere\n"
    )
    assert code == 1


def test_a_reader_that_has_gone_hears_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert ended([*WAVEPP, "--version"], writer) == (1, "")
    finally:
        os.close(writer)
