from __future__ import annotations

from pathlib import Path

import pytest
from dynamo._core import Context
from dynamo.llm.exceptions import InvalidArgument
from prometheus_client import generate_latest

from tests.support.dynamo_workers import (
    collect,
    prompt,
    run,
    started,
)

pytestmark = pytest.mark.usefixtures("fake_engines")


def test_outcomes_are_counted(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("agg", text_model)
        await collect(worker, prompt("agg"), Context("r"))
        with pytest.raises(InvalidArgument):
            await collect(worker, {"token_ids": []}, Context("r2"))
        text = "".join(generate_latest(registry).decode() for registry in worker.registries())
        assert 'wavepp_prefill_requests_total{outcome="finished"} 1.0' in text
        assert 'wavepp_decode_requests_total{outcome="length"} 1.0' in text

    run(check())
