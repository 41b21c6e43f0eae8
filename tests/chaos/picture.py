"""A run as a picture: faults above, requests by outcome below, on one axis of time."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

from tests.chaos.faults import LASTING, Role
from tests.chaos.judge import FAILURES, Verdict
from tests.chaos.record import Record

COLOURS = {
    Verdict.RIGHT: "#009e73",
    Verdict.REFUSED: "#56b4e9",
    Verdict.LEFT: "#bbbbbb",
    Verdict.ERROR: "#e69f00",
    Verdict.BROKEN: "#cc79a7",
    **dict.fromkeys(FAILURES, "#d00000"),
}
SHORT = {"SIGKILL": "K", "SIGTERM": "T", "SIGSTOP": "S"}


def draw(record: Record, path: Path) -> None:
    """Write a PNG."""
    figure, (top, bottom) = pyplot.subplots(
        2, 1, sharex=True, figsize=(14, 6.5), height_ratios=(1, 1.4), layout="constrained"
    )
    roles = list(Role)
    for each in record.injected:
        if not each.victim:
            continue
        y = roles.index(each.fault.role)
        if each.fault.kind in LASTING:
            top.barh(y, each.ended - each.began, left=each.began, height=0.5, color="#0072b2", alpha=0.5)
        name = SHORT.get(each.fault.kind.value, each.fault.kind.value)
        top.plot(each.began, y, marker="|", color="black", markersize=12)
        top.annotate(name, (each.began, y + 0.3), fontsize=6, rotation=25)
    for before, after in zip(record.health, record.health[1:], strict=False):
        for role in before.down:
            top.barh(
                roles.index(role),
                after.at - before.at,
                left=before.at,
                height=0.9,
                color="#d55e00",
                alpha=0.2,
            )
    top.set_yticks(range(len(roles)), [role.value for role in roles])
    top.set_ylim(-0.6, len(roles) - 0.1)
    top.set_title(
        f"{record.setting}, seed {record.seed}: faults (K, T, S: SIGKILL, SIGTERM, SIGSTOP); "
        "red: a process of the role is not ready",
        loc="left",
    )
    for verdict in Verdict:
        points = [each.reply for each in record.outcomes if each.verdict is verdict]
        if points:
            bottom.scatter(
                [reply.ended for reply in points],
                [max(reply.ended - reply.began, 0.001) for reply in points],
                s=5,
                color=COLOURS[verdict],
                label=f"{verdict.value} ({len(points)})",
            )
    bottom.set_yscale("log")
    bottom.set_ylabel("seconds to the outcome")
    bottom.set_xlabel("seconds of load")
    bottom.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
