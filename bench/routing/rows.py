"""What was measured of one workload on one graph, and how far the router's idea of each request was off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from bench.common.kept import Kept
from bench.common.percentile import percentile
from bench.routing.replica import BLOCK


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was answered.

    Attributes:
        seconds: from sending it to its first token, which is all of its answer.
        reused: tokens of ``prompt`` that its replica did not compute.
        foretold: share of the prompt's blocks that the router held to be at the replica it chose; None where the router
            does not look.
        replica: id of the worker that prefilled it.
    """

    seconds: float
    prompt: int
    reused: int
    foretold: float | None
    replica: int

    @property
    def error(self) -> float | None:
        """Blocks that the router believed in beyond those that were reused; less than zero if it knew too few."""
        if self.foretold is None:
            return None
        return self.foretold * -(-self.prompt // BLOCK) - self.reused / BLOCK


class Row(Kept, frozen=True, kw_only=True):
    """A workload on a graph of so many replicas.

    Attributes:
        mode: the router's.
        options: what else the graph was told.
        seconds: from the first request to the last answer.
        busy: share of the machine's processors that was not idle meanwhile, whoever used it.
    """

    workload: str
    mode: str
    options: str
    replicas: int
    seconds: float
    busy: float
    answers: list[Answer]

    @property
    def hit_rate(self) -> float:
        return sum(each.reused for each in self.answers) / sum(each.prompt for each in self.answers)

    @property
    def throughput(self) -> float:
        """Prompt tokens a second, reused ones included."""
        return sum(each.prompt for each in self.answers) / self.seconds

    def time(self, share: float) -> float:
        """Seconds to the first token, of which ``share`` of the requests needed at most these."""
        return percentile([each.seconds for each in self.answers], share)

    def spread(self) -> str:
        """Requests of each replica, most first."""
        counts = Counter(each.replica for each in self.answers)
        return "+".join(str(count) for count in sorted(counts.values(), reverse=True))

    def errors(self) -> Sequence[float]:
        """Of every request, blocks that the router was off by."""
        return [abs(each.error) for each in self.answers if each.error is not None]
