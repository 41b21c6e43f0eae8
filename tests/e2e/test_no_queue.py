"""A graph without a queue needs no NATS server."""

from __future__ import annotations

import pytest

from tests.support.observer_router import environment_of
from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e


def test_it_does_not_care_where_nats_is(agg: ServedGraph) -> None:
    (worker,) = agg.workers("Worker")
    assert environment_of(worker["pid"])["NATS_AUTH_TOKEN"] == "t"
    assert agg.complete([1, 2], max_tokens=2)
