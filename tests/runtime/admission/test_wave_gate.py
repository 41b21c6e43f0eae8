"""Rounds and waves keep out of each other's way where executors pause."""

from __future__ import annotations

import pytest
from wavepp_worker.errors import StepTimeout
from wavepp_worker.runtime.admission.wave_gate import WaveGate


def test_parking_waits_for_the_wave_and_holds_the_next_one_back() -> None:
    gate = WaveGate(timeout=0.01)
    with gate.executing(), pytest.raises(StepTimeout, match="still executing"):
        gate.park()
    gate.park()
    with pytest.raises(StepTimeout, match="still holds"), gate.executing():
        pass
    gate.resume()
    with gate.executing():
        pass
