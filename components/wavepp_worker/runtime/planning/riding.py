"""Whether on a single stage those who read what a wave computes should be in that very wave; for ``mpu``. Pure.

Not in the paper. It can save a wave, and so what a wave costs by itself; but whoever would be answered without them
waits for their work.
"""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.runtime.planning.lane_work import works
from wavepp_worker.runtime.planning.planner import Lane, PipelineView
from wavepp_worker.runtime.planning.wave_cost import WaveCost

MOST_FOR_A_WAVE_MORE = 0.05
"""Share of the time until the last answer that a wave more may cost, for the sake of those who are answered before."""


def riding_pays(view: PipelineView, lanes: Sequence[Lane], cost: WaveCost, max_tokens: int) -> bool:
    """Whether those who read from ``lanes`` are to share waves of at most so many tokens with them.

    Only if that saves a wave: one that takes more than a twentieth of the time, or by which the readers gain more than
    the others lose.
    """
    if not view.riding:
        return False
    first, second = (sum(lane.left for lane in those) for those in (lanes, view.behind))
    before, together = -(-first // max_tokens), -(-(first + second) // max_tokens)
    saved = (before - (-second // max_tokens) - together) * cost.a
    if saved <= 0:
        return False
    ready, behind = (cost.b * sum(works(those, cost)) for those in (lanes, view.behind))
    # Those who read nothing are done with the wave in which their work ends; all that is in it is done with it.
    alone = before * cost.a + ready
    shared = before * (cost.a + (ready + behind) / together)
    lost, gained = len(lanes) * max(0.0, shared - alone), len(view.behind) * saved
    return gained >= lost or saved >= MOST_FOR_A_WAVE_MORE * (together * cost.a + ready + behind)
