"""A graph with a queue whose NATS server is not there answers all the same."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import served
from tests.support.nats_servers import NatsServer
from tests.support.reference import Reference

pytestmark = pytest.mark.e2e


def prompt(seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(256) for _ in range(300)]


@pytest.mark.soak
def test_a_graph_with_a_queue_starts_and_starts_again_without_its_server(
    ascii_model: Path, reference: Reference, tmp_path: Path
) -> None:
    server = NatsServer(tmp_path)
    words = [
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        "--PrefillWorker.pp=1",
        "--PrefillWorker.ServiceArgs.workers=1",
        "--DecodeWorker.max_local_prefill_length=64",
    ]
    try:
        with served("graphs:disagg_wavepp_queue", *words, env={"NATS_SERVER": server.url}) as graph:

            def text(seed: int) -> str:
                return graph.complete(prompt(seed), max_tokens=4)["choices"][0]["text"]

            def sent() -> float:
                return graph.metric(graph.workers("DecodeWorker")[0], "wavepp_remote_prefills_total")

            def warned() -> int:
                # What a worker said before it was killed is printed once more.
                return sum(
                    "is not reached yet" in line
                    for line in graph.running.log().splitlines()
                    if "|   >" not in line
                )

            def renewed() -> bool:
                entries = [*graph.workers("DecodeWorker"), *graph.workers("PrefillWorker")]
                return all(entry["ready"] and entry["restarts"] == 1 for entry in entries)

            assert warned() == 2, graph.running.log()
            assert text(1) == reference.text(prompt(1), 4)
            for service in ("DecodeWorker", "PrefillWorker"):
                os.kill(graph.workers(service)[0]["pid"], signal.SIGKILL)
            graph.running.wait_for(renewed, 90)
            assert warned() == 4, graph.running.log()
            graph.running.wait_for(
                lambda: graph.post("/v1/completions", prompt=[1], max_tokens=1).status_code == 200
            )
            assert text(2) == reference.text(prompt(2), 4)
            assert sent() == 0
            assert "Traceback" not in graph.running.log()
            server.start()
            graph.running.wait_for(lambda: graph.running.log().count("takes jobs of queue") == 1)
            graph.running.wait_for(lambda: "sends long prompts to the queue" in graph.running.log())
            assert text(3) == reference.text(prompt(3), 4)
            assert sent() == 1
    finally:
        server.close()
