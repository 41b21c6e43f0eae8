"""The endpoint beside the one that generates."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from dynamo.common.forward_pass_metrics import ForwardPassMetrics, ScheduledRequestMetrics
from wavepp_worker.dynamo import own_runtime
from wavepp_worker.dynamo.pass_samples import PassSamples
from wavepp_worker.dynamo.perf_metrics import PerfMetrics

from tests.support.dynamo_workers import FakeEndpoint

OPTIONS = SimpleNamespace(discovery_backend="file", request_plane="tcp", event_plane="zmq")
RUNTIME: Any = SimpleNamespace(namespace="ns", component="prefill", options=OPTIONS)


class Served(FakeEndpoint):
    def __init__(self) -> None:
        self.handler: Any = None

    async def serve_endpoint(self, handler: Any) -> None:
        self.handler = handler
        await asyncio.Event().wait()


def test_it_is_served_where_planners_ask_and_leaves_with_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    served, made = Served(), []

    class Runtime:
        def __init__(self, loop: object, *planes: str, event_plane: str) -> None:
            made.append((*planes, event_plane))

        def endpoint(self, path: str) -> Served:
            made.append(path)
            return served

    monkeypatch.setattr(own_runtime, "DistributedRuntime", Runtime)

    async def check() -> None:
        samples = PassSamples()
        metrics = PerfMetrics(RUNTIME, samples)
        await metrics.close()
        await metrics.open()
        await asyncio.sleep(0)
        assert made == [("file", "tcp", "zmq"), "ns.prefill.get_perf_metrics"]
        samples.add(
            ForwardPassMetrics(
                wall_time=1.0,
                scheduled_requests=ScheduledRequestMetrics(num_prefill_requests=1, sum_prefill_tokens=8),
            )
        )
        (answer,) = [each async for each in served.handler(None)]
        assert answer["results"][0]["fpms"][0]["wall_time"] == 1.0
        await metrics.close()
        await metrics.close()
        assert served.unregistered == 1

    asyncio.run(check())


def test_a_worker_goes_on_without_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no runtime")

    monkeypatch.setattr(own_runtime, "DistributedRuntime", fails)

    async def check() -> None:
        metrics = PerfMetrics(RUNTIME, PassSamples())
        await metrics.open()
        await metrics.close()

    asyncio.run(check())
    assert "get_perf_metrics is not served: no runtime" in caplog.text
