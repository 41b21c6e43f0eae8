"""What one run over one graph saw: all that the summary and the picture are made of."""

from __future__ import annotations

import msgspec

from tests.chaos.explain import Health
from tests.chaos.faults import Injected
from tests.chaos.judge import Reply, Verdict
from tests.chaos.leaks import Held, Left
from tests.chaos.workload import Manner


class Outcome(msgspec.Struct, frozen=True):
    """One request: how it was made, what came back, and what that is worth."""

    manner: Manner
    reply: Reply
    verdict: Verdict


class Record(msgspec.Struct):
    """One run; filled while it goes on.

    Attributes:
        setting: name of the graph's setting.
        seed: that everything was drawn from.
        seconds: of load with faults.
        injected: faults, in the order in which they ended.
        outcomes: requests, in the order in which they ended.
        health: whether all was ready, twice a second.
        samples: what every process held, every few seconds.
        first, last: what they held at rest, before and after.
        before, after: shared memory and processes around the run.
        audited: workers whose books balance, afterwards.
        jobs: that came to the queue in all; None if there is no queue.
        queued: jobs that are left in the queue, afterwards; None if there is no queue.
        broken: sentences about what did not hold otherwise, such as books that do not balance.
    """

    setting: str
    seed: int
    seconds: float
    injected: list[Injected] = []
    outcomes: list[Outcome] = []
    health: list[Health] = []
    samples: list[Held] = []
    first: list[Held] = []
    last: list[Held] = []
    before: Left = Left()
    after: Left = Left()
    audited: int = 0
    jobs: int | None = None
    queued: int | None = None
    broken: list[str] = []
