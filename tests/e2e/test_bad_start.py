"""A configuration that cannot work fails the start, in a sentence that names the key, and leaves nothing."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.graph_process import REPOSITORY, start_graph

pytestmark = pytest.mark.e2e


BAD_SETTINGS = {
    "--Common.model=/nowhere": "model",
    "--PrefillWorker.pp=7": "pp",
    "--PrefillWorker.partition=3,4": "partition",
    "--PrefillWorker.kv_tokens=512": "kv_tokens",
    "--PrefillWorker.no_such_key=1": "no_such_key",
    "--PrefilWorker.pp=2": "PrefilWorker",
    "--PrefillWorker.dtype=float8": "dtype",
}


def test_a_bad_setting_fails_the_start(ascii_model: Path) -> None:
    def start(setting: str) -> None:
        words = [f"--Common.model={ascii_model}", "--PrefillWorker.ServiceArgs.workers=1", setting]
        with start_graph("graphs:disagg_wavepp", *words, cwd=REPOSITORY) as running:
            assert running.wait_exit(90) == 2, running.log()
            assert BAD_SETTINGS[setting] in running.log().replace("\n", " ")
            assert "Traceback" not in running.log()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(start, BAD_SETTINGS))


def test_a_port_in_use_fails_the_start(ascii_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [f"--Common.model={ascii_model}", "--port", str(port)]
        with start_graph("graphs:disagg_wavepp", *words, cwd=REPOSITORY) as running:
            assert running.wait_exit(60) == 2, running.log()
            assert f"port {port}" in running.log() or f"--port={port}" in running.log()
