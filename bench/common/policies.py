"""The policies that are compared: how requests are admitted, who owns cache, and which planner makes waves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

LOCKSTEP, GREEDY, MPU = "lockstep", "lease", "mpu"
"""The policies that others are compared with: the baseline, the best with greedy planning, and the product's."""

POLICIES: dict[str, dict[str, Any]] = {
    LOCKSTEP: {"admission": "lockstep", "planner": "greedy"},
    "wave": {"admission": "wave", "ownership": "none", "planner": "greedy"},
    GREEDY: {"admission": "wave", "ownership": "lease", "planner": "greedy"},
    "throttle": {"admission": "wave", "ownership": "lease", "planner": "throttle"},
    "mpu-paper": {"admission": "wave", "ownership": "lease", "planner": "mpu-paper"},
    MPU: {"admission": "wave", "ownership": "lease", "planner": "mpu"},
}
"""Fields of ``EngineConfig`` by policy, in the order of all tables' columns."""

RUNGS = {"R1": LOCKSTEP, "R2": "wave", "R3": GREEDY, "R4": MPU}
"""The ablation (paper, section 5.8): each rung adds a mechanism to the one before."""


def in_table_order(found: Iterable[str]) -> list[str]:
    """Each policy once, in the order of ``POLICIES``; those that are not in it come last."""
    names = list(dict.fromkeys(found))
    return [name for name in POLICIES if name in names] + [name for name in names if name not in POLICIES]


def require_known(chosen: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name on the command line that is not known.

    Raises:
        BadParameter: names the first unknown one, and all that are known.
    """
    names = list(known)
    if unknown := [name for name in chosen if name not in names]:
        raise typer.BadParameter(f"{unknown[0]} is not one of {', '.join(names)}")
