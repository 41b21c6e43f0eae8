"""What runs, and where to look at it, for people: from a run's state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from wavepp_worker.worker_description import EngineDescription, RankDescription, WorkerDescription

_TRANSPORTS = {"socket": "sockets", "nixl": "NIXL"}


def banner(state: Mapping[str, Any], loads: Mapping[str, list[str]] | None = None) -> list[str]:
    """A few lines for each process.

    Args:
        state: as ``state.json`` has it.
        loads: what else to say of the process at a URL.
    """
    lines: list[str] = [f"note: {note}" for note in state.get("notes", ())]
    lines += _planner(state.get("planner"))
    width = max((len(_label(each)) for each in state["processes"]), default=0)
    for process in state["processes"]:
        load = (loads or {}).get(process["url"], [])
        own = [_where(process), *_engines(process), *load, *_urls(process)]
        lines += [f"{_label(process) if first else '':<{width}}  {text}" for first, text in _marked(own)]
    return lines


def _planner(state: Mapping[str, Any] | None) -> list[str]:
    """The latest decision of Dynamo's planner, and what it lacks."""
    if state is None or state["decision"] is None:
        return []
    asked = ", ".join(f"{count} of {service}" for service, count in state["workers"].items())
    lines = [f"the planner's decision {state['decision']}: {asked or 'nothing that is started here'}"]
    return lines + [f"  {sentence}" for sentence in state["shortfall"]]


def _marked(lines: list[str]) -> list[tuple[bool, str]]:
    return [(number == 0, line) for number, line in enumerate(lines)]


def _label(process: Mapping[str, Any]) -> str:
    return f"{process['service']}:{process['replica']}"


def _where(process: Mapping[str, Any]) -> str:
    if process["pid"] is None:
        life = "is about to be started again"
    else:
        state = "" if process["ready"] else ", paused" if process.get("paused") else ", not ready"
        life = f"pid {process['pid']}{state}"
    restarts = process["restarts"]
    again = f", {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
    return f"{process['url']}  {life}{again}{_instance(process)}"


def _instance(process: Mapping[str, Any]) -> str:
    """Its id in Dynamo's discovery, in both forms in which logs and metrics have it."""
    about = process.get("about")
    found = None if about is None else msgspec.convert(about, WorkerDescription).instance
    return "" if found is None else f", worker_id {found} ({int(found, 16)})"


def _engines(process: Mapping[str, Any]) -> list[str]:
    return [_engine(each) for each in _described(process)]


def _described(process: Mapping[str, Any]) -> tuple[EngineDescription, ...]:
    about = process.get("about")
    return () if about is None else msgspec.convert(about, WorkerDescription).engines


def _engine(engine: EngineDescription) -> str:
    ranks = engine.ranks
    layers = " + ".join(str(rank.layers) for rank in ranks)
    split = f"{len(ranks)} ranks of {layers} layers" if len(ranks) > 1 else f"{layers} layers"
    if pids := [str(rank.pid) for rank in ranks if rank.pid is not None]:
        split += f" (pid{'s' if len(pids) > 1 else ''} {', '.join(pids)})"
    parts = [f"{engine.role}: {engine.dtype} on {engine.device}, {split}", f"KV {_pools(ranks, 'kv_tokens')}"]
    for name, key in (("host", "host_tokens"), ("disk", "disk_tokens")):
        if any(getattr(rank, key) for rank in ranks):
            parts.append(f"{name} {_pools(ranks, key)}")
    if any(rank.states for rank in ranks):
        held = " + ".join(
            f"{rank.states:,} ({rank.states * rank.state_bytes / 2**20:,.1f} MiB)" for rank in ranks
        )
        parts.append(f"states {held}")
    if engine.transport is not None or engine.bootstrap is not None:
        over = (
            "" if engine.transport is None else f" over {_TRANSPORTS.get(engine.transport, engine.transport)}"
        )
        at = "" if engine.bootstrap is None else f" at {engine.bootstrap}"
        parts.append(f"hand-offs{over}{at}")
    return "; ".join(parts)


def _pools(ranks: tuple[RankDescription, ...], key: str) -> str:
    """``32,768 tokens (24 + 24 MiB)``; one number of tokens if it is the same everywhere."""
    tokens = [getattr(rank, key) for rank in ranks]
    shown = tokens[:1] if len(set(tokens)) == 1 else tokens
    each = " a rank" if len(ranks) > 1 and len(shown) == 1 else ""
    mebibytes = [amount * rank.bytes_per_token / 2**20 for amount, rank in zip(tokens, ranks, strict=True)]
    size = f" ({' + '.join(f'{size:,.0f}' if size >= 10 else f'{size:.1f}' for size in mebibytes)} MiB)"
    return f"{' + '.join(f'{count:,}' for count in shown)} tokens{each}{size if any(mebibytes) else ''}"


def _urls(process: Mapping[str, Any]) -> list[str]:
    url = process["url"]
    if process["kind"] == "server":
        return [f"health {url}/healthz", "send it jobs: wavepp submit jobs.jsonl --out results.jsonl"]
    lines = [f"metrics {url}/metrics  health {url}/health"]
    if process["kind"] == "worker":
        # Timings are of prefills.
        prefills = any(engine.role == "prefill" for engine in _described(process))
        controls = ("audit", "timings", "why") if prefills else ("audit", "why")
        lines += [f"{control}: curl -X POST {url}/engine/control/{control}" for control in controls]
    return lines
