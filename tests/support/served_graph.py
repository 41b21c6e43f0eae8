"""A graph as its clients see it: requests to the frontend, controls and metrics of each worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.graph_process import RunningGraph


@dataclass
class ServedGraph:
    """A running graph and a client of its frontend."""

    running: RunningGraph
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

    def audit(self) -> int:
        """Every worker proves that it leaked nothing; returns how many did."""
        audited = 0
        for service in ("PrefillWorker", "DecodeWorker", "Worker"):
            for worker in self.workers(service):
                answer = self.control(worker, "audit")
                assert answer.get("status") == "ok", f"{service}: {answer}"
                audited += 1
        return audited
