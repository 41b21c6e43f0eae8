from __future__ import annotations

import pytest
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.node import Node


@pytest.mark.parametrize(("passed", "reused"), [(False, False), (False, True), (True, False), (True, True)])
def test_only_what_a_window_has_passed_and_nobody_came_back_to_is_spent(passed: bool, reused: bool) -> None:
    node = Node(b"key", None, 0, Tier.DEVICE, 3)
    node.passed, node.reused = passed, reused
    assert node.spent == (passed and not reused)
