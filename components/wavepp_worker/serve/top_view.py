"""What the workers of a graph do at this moment, as a table: from their metrics. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from wavepp_worker.serve.own_metrics import own_samples

SHARE_SECONDS = 1.0
"""Shares of busy time are over so long: heartbeats, twice a second, bring them."""
RATE_SECONDS = 10.0
"""Rates and hits are over so long: they count requests that end, which come one by one."""
TIERS = ("device", "host", "disk")
NONE = "-"

Key = tuple[str, str, str]
"""A metric without its prefix, and its labels ``rank`` and ``tier``, empty where it has none."""


@dataclass(frozen=True)
class Frame:
    """What a worker's metrics said.

    Attributes:
        seconds: when, on a clock that never goes back.
        values: all samples of ours.
    """

    seconds: float
    values: Mapping[Key, float]

    def get(self, name: str, rank: str = "", tier: str = "") -> float:
        return self.values.get((name, rank, tier), 0.0)

    @property
    def ranks(self) -> list[str]:
        """Those that report, in order."""
        named = (rank for name, rank, _ in self.values if name == "rank_busy_seconds_total" and rank)
        return sorted(named, key=int)

    @property
    def tiers(self) -> set[str]:
        return {tier for name, _, tier in self.values if name == "tier_total_blocks"}


def read_frame(seconds: float, metrics: str) -> Frame:
    """A frame of a worker's metrics, in Prometheus' text format.

    Raises:
        ValueError: it is no such text.
    """
    values: dict[Key, float] = defaultdict(float)
    for name, labels, value in own_samples(metrics):
        rank = labels.get("rank", "")
        if rank and not (rank.isascii() and rank.isdigit()):
            raise ValueError(f"a rank has a number, and this one is called {rank!r}")
        values[name, rank, labels.get("tier", "")] += value
    return Frame(seconds, dict(values))


class History:
    """The last frames of one worker, as long as rates need them."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []

    def add(self, frame: Frame) -> None:
        """Take the next one; those before a counter went back are of another life of the worker."""
        if self._frames and frame.get("waves_total") < self._frames[-1].get("waves_total"):
            self._frames.clear()
        self._frames.append(frame)
        while len(self._frames) > 2 and frame.seconds - self._frames[1].seconds >= RATE_SECONDS:
            del self._frames[0]

    @property
    def latest(self) -> Frame | None:
        return self._frames[-1] if self._frames else None

    def increase(self, name: str, over: float, rank: str = "") -> tuple[float, float]:
        """By how much a counter grew, and in how many seconds: at least ``over``, or as long as is known."""
        if not self._frames:
            return 0.0, 0.0
        last = self._frames[-1]
        before = next(
            (each for each in reversed(self._frames) if last.seconds - each.seconds >= over), self._frames[0]
        )
        return last.get(name, rank) - before.get(name, rank), last.seconds - before.seconds

    def rate(self, name: str, over: float, rank: str = "") -> float | None:
        """The same for each second; None before the second frame."""
        grown, seconds = self.increase(name, over, rank)
        return grown / seconds if seconds > 0 else None


@dataclass(frozen=True)
class Worker:
    """One worker of a graph.

    Attributes:
        name: service and replica.
        history: what it said; without a frame it does not answer.
    """

    name: str
    history: History


def prefill_table(title: str, workers: Sequence[Worker]) -> Table:
    """A row for each rank; what is of a whole replica stands in the row of its first rank."""
    table = Table(
        title=title, title_justify="left", expand=False, box=None, pad_edge=False, header_style="bold"
    )
    frames = [frame for each in workers if (frame := each.history.latest) is not None]
    tiers = [tier for tier in TIERS if any(tier in frame.tiers for frame in frames)]
    heads = ["replica", "rank", "busy", "bubble", *tiers, "KV held", "waves", "queued", "running", "holding"]
    heads += ["hit", "tokens/s", "computed/s", "handed off/s"]
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place == 0 else "right", no_wrap=True)
    for worker in workers:
        for row in prefill_rows(worker, tiers):
            table.add_row(*row)
    return table


def prefill_rows(worker: Worker, tiers: Sequence[str]) -> list[list[str]]:
    """The cells of a replica that prefills."""
    history, frame = worker.history, worker.history.latest
    if frame is None:
        return [[worker.name, "does not answer"]]
    prompts, _ = history.increase("prompt_tokens_total", RATE_SECONDS)
    reused, seconds = history.increase("reused_tokens_total", RATE_SECONDS)
    offered = history.rate("handoff_offered_bytes_total", RATE_SECONDS)
    whole = [
        _percent(frame.get("used_blocks"), frame.get("total_blocks")),
        *(f"{frame.get(name):.0f}" for name in ("waves_in_flight", "queued_requests", "running_requests")),
        f"{frame.get('handing_off_requests'):.0f}",
        _percent(reused, prompts),
        f"{prompts / seconds:,.0f}" if seconds else NONE,
        f"{(prompts - reused) / seconds:,.0f}" if seconds else NONE,
        NONE if offered is None else _bytes(offered),
    ]
    active = history.rate("pipeline_active_seconds_total", SHARE_SECONDS)
    rows: list[list[str]] = []
    for rank in frame.ranks:
        busy = history.rate("rank_busy_seconds_total", SHARE_SECONDS, rank)
        # The two are counted up to different moments of the second.
        bubble = None if busy is None or active is None else max(0.0, min(active, 1.0) - busy)
        used = [
            _percent(frame.get("tier_used_blocks", rank, tier), frame.get("tier_total_blocks", rank, tier))
            for tier in tiers
        ]
        rows.append(["" if rows else worker.name, rank, _share(busy), _share(bubble), *used])
    rows = rows or [[worker.name, NONE, NONE, NONE, *(NONE for _ in tiers)]]
    rows[0] += whole
    return rows


def decode_table(workers: Sequence[Worker]) -> Table:
    """A row for each decode worker."""
    table = Table(expand=False, box=None, pad_edge=False, header_style="bold")
    for place, head in enumerate(
        ("replica", "KV held", "waiting", "receiving", "running", "tokens/s", "received/s")
    ):
        table.add_column(head, justify="left" if place == 0 else "right", no_wrap=True)
    for worker in workers:
        frame = worker.history.latest
        if frame is None:
            table.add_row(worker.name, "does not answer")
            continue
        made = worker.history.rate("decode_tokens_generated_total", RATE_SECONDS)
        received = worker.history.rate("decode_kv_received_bytes_total", RATE_SECONDS)
        table.add_row(
            worker.name,
            _percent(frame.get("decode_used_blocks"), frame.get("decode_total_blocks")),
            *(f"{frame.get(f'decode_{each}_requests'):.0f}" for each in ("waiting", "receiving", "running")),
            NONE if made is None else f"{made:,.0f}",
            NONE if received is None else _bytes(received),
        )
    return table


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else NONE


def _share(seconds: float | None) -> str:
    # A wave's time counts when it ends, so that a short look may see more than there was, or less.
    return NONE if seconds is None else f"{100 * min(1.0, max(0.0, seconds)):.0f} %"


def _bytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
