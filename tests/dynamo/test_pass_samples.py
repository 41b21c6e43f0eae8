"""Which forward passes are kept for a planner that comes later."""

from __future__ import annotations

import msgspec
from dynamo.common.forward_pass_metrics import ForwardPassMetrics, ScheduledRequestMetrics
from wavepp_worker.dynamo.pass_samples import OF_A_SIZE, PassSamples


def passed(seconds: float = 0.5, **work: int) -> ForwardPassMetrics:
    return ForwardPassMetrics(wall_time=seconds, scheduled_requests=ScheduledRequestMetrics(**work))


def test_of_each_size_the_latest_are_kept_with_their_kind() -> None:
    samples = PassSamples()
    for number in range(OF_A_SIZE + 2):
        samples.add(passed(1.0 + number, num_prefill_requests=1, sum_prefill_tokens=200))
    samples.add(passed(num_prefill_requests=1, sum_prefill_tokens=40))
    samples.add(passed(num_decode_requests=3, sum_decode_kv_tokens=700))
    results = samples.results()["results"]
    assert [each["point"]["point_type"] for each in results] == ["decode", "prefill", "prefill"]
    kept = [msgspec.convert(each, ForwardPassMetrics) for each in results[2]["fpms"]]
    assert [each.wall_time for each in kept] == [1.0 + number for number in range(2, OF_A_SIZE + 2)]
    assert kept[0].scheduled_requests.sum_prefill_tokens == 200


def test_what_a_planner_cannot_learn_from_is_not_kept() -> None:
    samples = PassSamples()
    assert samples.results()["status"] == "error"
    samples.add(passed())
    samples.add(passed(0.0, num_prefill_requests=1, sum_prefill_tokens=8))
    samples.add(
        passed(num_prefill_requests=1, sum_prefill_tokens=8, num_decode_requests=1, sum_decode_kv_tokens=8)
    )
    assert samples.results()["status"] == "error"
