"""Reading a written trace back, and the rules that every trace has to keep."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def traced(path: Path) -> list[Event]:
    """The events of a trace that keeps the rules every trace has to keep."""
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert all(event["ts"] >= 0 for event in timed)
    check_tracks(events)
    check_flows(timed)
    return events


def check_tracks(events: list[Event]) -> None:
    """Threads have names and numbers of their own; on each, slices nest or follow one another."""
    threads = {event["tid"]: event["pid"] for event in events if event["name"] == "thread_name"}
    assert len(threads) == sum(event["name"] == "thread_name" for event in events)
    open_ends: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert threads[event["tid"]] == event["pid"]
            start = round(1000 * event["ts"])
            end = start + round(1000 * event["dur"])
            assert end >= start
            stack = open_ends[event["tid"]]
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1], f"{event} overlaps another slice of its track"
            stack.append(end)


def check_flows(events: list[Event]) -> None:
    """Each flow starts and ends once, on ranks that follow one another, at the start of a slice of its wave."""
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    at = {(event["tid"], event["ts"]): event for event in events if event["ph"] == "X" and event["args"]}
    for flow in flows.values():
        assert [event["ph"] for event in flow] == ["s", *"t" * (len(flow) - 2), "f"]
        ranks = [event["pid"] for event in flow]
        assert ranks == list(range(ranks[0], ranks[0] + len(ranks)))
        assert len({at[event["tid"], event["ts"]]["args"]["wave"] for event in flow}) == 1


def slices(events: list[Event], track: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == track]


def flow_hops(events: list[Event]) -> int:
    return sum(event["ph"] in "tf" for event in events)
