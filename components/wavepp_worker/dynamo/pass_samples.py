"""Forward passes of all sizes that a worker has had, from which a planner learns what they cost. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import msgspec
from dynamo.common.forward_pass_metrics import ForwardPassMetrics

OF_A_SIZE = 8
"""Passes that are kept of those that are about as large, the latest."""


class PassSamples:
    """A few passes of every size; of those that prefill and decode at once none."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, int], deque[ForwardPassMetrics]] = defaultdict(
            lambda: deque(maxlen=OF_A_SIZE)
        )

    def add(self, passed: ForwardPassMetrics) -> None:
        """Keep a pass, if a planner can learn from it."""
        work = passed.scheduled_requests
        if passed.wall_time <= 0 or bool(work.num_prefill_requests) == bool(work.num_decode_requests):
            return
        if work.num_prefill_requests:
            size = "prefill", work.sum_prefill_tokens.bit_length(), work.num_prefill_requests.bit_length()
        else:
            size = "decode", work.sum_decode_kv_tokens.bit_length(), work.num_decode_requests.bit_length()
        self._kept[size].append(passed)

    def results(self) -> dict[str, Any]:
        """What ``get_perf_metrics`` of Dynamo's workers answers: each pass with its kind, or that there is none."""
        # A copy, as engines' threads add to it meanwhile.
        kept = tuple(self._kept.items())
        if not kept:
            return {
                "status": "error",
                "message": "no forward pass so far; ask again once there were requests",
            }
        return {
            "status": "ok",
            "results": [
                {"point": {"point_type": kind}, "fpms": [msgspec.to_builtins(each) for each in tuple(passes)]}
                for (kind, _, _), passes in sorted(kept)
            ],
        }
