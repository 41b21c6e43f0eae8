"""A minute of the chaos campaign: every kind of fault that needs no disk, at fixed places (``make chaos`` is long)."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tests.chaos.campaign import Campaign
from tests.chaos.display import Display
from tests.chaos.faults import Fault, Kind, Role
from tests.chaos.known_answers import known_answers
from tests.chaos.settings import TIERS, Setting
from tests.chaos.summary import summarise
from tests.support.ascii_model import make_ascii_model

pytestmark = pytest.mark.e2e

SETTING = Setting("short", "graphs:disagg_wavepp", ("--PrefillWorker.kv_tokens=12288",))
SECONDS = 24.0
SCHEDULE = (
    Fault(1.0, Kind.KILL, Role.RANK, 0.0),
    Fault(2.0, Kind.STOP, Role.DECODE, 0.0, 1.5),
    Fault(4.0, Kind.FLOOD, Role.DECODE, 0.0, 2.0),
    Fault(5.0, Kind.KILL, Role.BROKER, 0.0),
    Fault(6.0, Kind.DESCRIPTORS, Role.RANK, 0.0, 2.0),
    Fault(7.0, Kind.FLOOD, Role.RANK, 0.0, 2.0),
    Fault(9.0, Kind.STOP, Role.RANK, 0.0, 1.5),
    Fault(11.0, Kind.KILL, Role.FRONTEND, 0.0),
)


DISKS = (
    Fault(8.0, Kind.DISK_FLIP, Role.RANK, 0.1),
    Fault(14.0, Kind.DISK_FLIP, Role.RANK, 0.6),
    Fault(20.0, Kind.DISK_TRUNCATE, Role.RANK, 0.3),
    Fault(27.0, Kind.DISK_FULL, Role.RANK, 0.9, 10.0),
    Fault(42.0, Kind.DISK_FLIP, Role.RANK, 0.8),
    Fault(48.0, Kind.DISK_TRUNCATE, Role.RANK, 0.0),
    Fault(56.0, Kind.DISK_FULL, Role.RANK, 0.4, 8.0),
)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_disks_that_fail_cost_no_request(tmp_path: Path) -> None:
    """Blocks that are damaged are computed again, and a disk that fails is switched off: nobody notices."""
    model = make_ascii_model(tmp_path / "tiny-ascii")
    cases = known_answers(model, seed=5, count=70, longest=2000)
    with Display(Console(log_path=False)) as display:
        campaign = Campaign(
            TIERS, model, cases, DISKS, seed=5, seconds=85.0, rate=5.0, checks=16, display=display
        )
        summary = summarise(campaign.run(), "", "")
    assert summary.failures == [], campaign.log[-6000:]
    assert set(summary.outcomes) <= {"right answer", "refused, as it is invalid", "client left"}
    assert sum(figures.injected for figures in summary.faults.values()) >= 5, (
        "a full disk takes root's rights"
    )


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_minute_of_chaos(tmp_path: Path) -> None:
    """Every request gets one right answer or one clear error, and nothing is left over."""
    model = make_ascii_model(tmp_path / "tiny-ascii")
    with Display(Console(log_path=False)) as display:
        campaign = Campaign(
            SETTING,
            model,
            known_answers(model, seed=3, count=24, longest=1500),
            SCHEDULE,
            seed=3,
            seconds=SECONDS,
            rate=4.0,
            checks=8,
            display=display,
        )
        summary = summarise(campaign.run(), "", "")
    assert summary.failures == [], campaign.log[-6000:]
    # How many is the machine's speed: most of these seconds go into starting replicas again.
    assert summary.outcomes.get("right answer", 0) > 0, summary.outcomes
    assert sum(figures.injected for figures in summary.faults.values()) == len(SCHEDULE), summary.faults
