"""The queues of the graphs that run on this machine, so that nobody has to name their servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.run_state import read_state, run_dirs
from wavepp_worker.setting_names import did_you_mean

_SEE = "wavepp status says what runs here"


@dataclass(frozen=True)
class RunningQueue:
    """The queue of one graph.

    Attributes:
        model: the name that clients ask for.
        namespace: Dynamo's.
        environment: the variables by which its server is reached, where the launcher runs that; else none.
    """

    model: str
    namespace: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


def running_queues() -> list[RunningQueue]:
    """Those of all graphs of this user whose prefill workers take jobs."""
    states = [state for each in run_dirs() if (state := read_state(each)) is not None]
    return [
        RunningQueue(str(state["model"]), str(state.get("namespace") or "dynamo"), state["queue"])
        for state in states
        if isinstance(state.get("queue"), dict) and state.get("model")
    ]


def choose_queue(
    queues: Sequence[RunningQueue],
    model: str | None,
    namespace: str | None,
    *,
    server_known: bool = False,
    spell: Callable[[str], str] = str,
) -> RunningQueue | None:
    """The one that is meant; None if there are none at all.

    Args:
        queues: of running graphs.
        model, namespace: as far as they are known.
        server_known: whether only the names are asked for, as the server is known.
        spell: how model, namespace and server are written where they are given.

    Raises:
        ConfigError: none fits, or several do; says which there are, and what to give.
    """
    named = [each for each in queues if model in (None, each.model)]
    fitting = [each for each in named if namespace in (None, each.namespace)]
    elsewhere = f"give {spell('server')} for one elsewhere ({_SEE})"
    if not queues:
        return None
    if not named:
        models = sorted({each.model for each in queues})
        raise ConfigError(
            f"{spell('model')}: no graph of this user here takes jobs of {model}{did_you_mean(str(model), models)}; "
            f"some take jobs of {', '.join(models)}; name one of these, or {elsewhere}"
        )
    if not fitting:
        namespaces = ", ".join(sorted({each.namespace for each in named}))
        raise ConfigError(
            f"{spell('namespace')}: no graph of this user here takes jobs in {namespace}; some do in {namespaces}; "
            f"name one of these, or {elsewhere}"
        )
    for key in ("model", "namespace"):
        found = sorted({str(getattr(each, key)) for each in fitting})
        if len(found) > 1:
            raise ConfigError(
                f"{spell(key)}: graphs of this user take jobs here of {key}s {', '.join(found)}; name one of these "
                f"with {spell(key)}"
            )
    if not server_known and any(each.environment != fitting[0].environment for each in fitting):
        raise ConfigError(
            f"{spell('server')}: {len(fitting)} graphs take jobs here of {fitting[0].model} in namespace "
            f"{fitting[0].namespace}; name the server of one with {spell('server')} (queue in its state.json; {_SEE})"
        )
    return fitting[0]
