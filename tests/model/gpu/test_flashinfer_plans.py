from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from wavepp_worker.errors import StepTimeout
from wavepp_worker.model.gpu import flashinfer_plans
from wavepp_worker.model.gpu.flashinfer_plans import AHEAD, PlannedWrappers


def test_wrappers_take_turns_and_none_plans_before_its_last_plan_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrived, made, moments = [True], [], []
    monkeypatch.setattr(flashinfer_plans, "PLAN_SECONDS", 0.05)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(
        flashinfer_plans,
        "moment",
        lambda stream: moments.append(stream) or SimpleNamespace(query=lambda: arrived[0]),
    )
    wrappers = PlannedWrappers(torch.device("cpu"), lambda: made.append(object()) or made[-1])
    planned: list[object] = []
    taken = [wrappers.plan("one", planned.append) for _ in range(AHEAD + 2)]
    assert taken == planned == [*made, *made[:2]]
    assert len(moments) == AHEAD + 2
    assert wrappers.plan("other", planned.append) is made[AHEAD], "of each kind its own"
    arrived[0] = False
    with pytest.raises(StepTimeout, match="not taken the plan of a wave"):
        wrappers.plan("one", planned.append)
    wrappers.clear()
    assert wrappers.plan("one", planned.append) is made[AHEAD + 1]
