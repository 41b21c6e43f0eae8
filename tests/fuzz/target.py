"""The graph under attack, as it has to be afterwards: the same processes, text, books and descriptors."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from tests.fuzz.findings import Findings
from tests.support.served_graph import ServedGraph

PROMPTS = ([5, 6, 7], [250] * 40, list(range(200)))
ANSWER_TOKENS = 12
SPARE_DESCRIPTORS = 24
"""By so many descriptors a process may have grown: pools of connections and threads fill up once."""
SETTLE_SECONDS = 30.0
AUDIT_SECONDS = 60.0


class Target:
    """A running graph, remembered as it was before."""

    def __init__(self, graph: ServedGraph) -> None:
        self.graph = graph
        self._texts = [self._text(prompt) for prompt in PROMPTS]
        self._pids = self._processes()
        self._descriptors = {pid: descriptors(pid) for pid in graph.running.pids()}

    @property
    def address(self) -> tuple[str, int]:
        """Of the frontend."""
        url = httpx.URL(self.graph.running.base_url)
        assert url.port is not None
        return url.host, url.port

    def plain(self) -> str | None:
        """Ask as anybody does; what was wrong with the answer."""
        for prompt, expected in zip(PROMPTS, self._texts, strict=True):
            try:
                text = self._text(prompt)
            except (AssertionError, httpx.HTTPError) as error:
                return f"a plain request was not answered: {str(error)[:300]}"
            if text != expected:
                return f"a plain request was answered with {text!r} instead of {expected!r}"
        return None

    def deaths(self) -> str | None:
        """Which service's process is not the one it was."""
        now = self._processes()
        gone = sorted(name for name, pid in self._pids.items() if now.get(name) != pid)
        return f"the process of {', '.join(gone)} died" if gone else None

    def check(self, findings: Findings, after: str) -> None:
        """Everything is as it was before; waits for what is still being given back.

        Args:
            after: what was done to the graph.
        """
        if (dead := self.deaths()) is not None:
            findings.add(dead, after)
        if (wrong := self.plain()) is not None:
            findings.add(wrong, after)
        try:
            self.graph.audit()
        except (AssertionError, httpx.HTTPError) as error:
            findings.add(f"the books do not balance: {str(error)[:300]}", after)
        if (leaked := self._leaked()) is not None:
            findings.add(leaked, after)

    def memory(self) -> int:
        """Bytes of resident memory of all processes of the run together."""
        return sum(resident_bytes(pid) for pid in self.graph.running.pids())

    def _leaked(self) -> str | None:
        latest = time.monotonic() + SETTLE_SECONDS
        while True:
            leaked = self._left_over()
            if leaked is None or time.monotonic() > latest:
                return leaked
            time.sleep(0.2)

    def _left_over(self) -> str | None:
        for pid in self.graph.running.pids():
            if _judges_grammars(pid):
                # Started by the first request that brings a grammar, and anew after one that it did not survive.
                continue
            if pid not in self._descriptors:
                return "a process more than before is running"
            grown = descriptors(pid) - self._descriptors[pid]
            if grown > SPARE_DESCRIPTORS:
                return f"a process holds {grown} descriptors more than before"
        return None

    def _text(self, prompt: list[int]) -> str:
        answer = self.graph.complete(prompt, max_tokens=ANSWER_TOKENS)
        text: str = answer["choices"][0]["text"]
        return text

    def _processes(self) -> dict[str, int]:
        entries = self.graph.running.state()["processes"]
        return {f"{entry['service']} {number}": entry["pid"] for number, entry in enumerate(entries)}


def descriptors(pid: int) -> int:
    """Open descriptors of a process; 0 if it is gone."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * 4096


def _judges_grammars(pid: int) -> bool:
    try:
        return b"wavepp_worker.model.grammar.judge_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
