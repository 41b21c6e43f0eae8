"""What is held in reserve is there when nothing else is."""

from __future__ import annotations

import os

import pytest
from wavepp_worker.dynamo.spare_descriptors import SpareDescriptors

from tests.chaos.injectors import limits


def test_as_many_as_are_held_can_be_opened_once_they_are_given_up() -> None:
    spare = SpareDescriptors(3)
    assert spare.hold()
    with limits.few_descriptors(os.getpid(), 0):
        assert not spare.hold()
        spare.give_up()
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        assert not spare.hold()
        for each in opened:
            os.close(each)
        assert not spare.hold(), "one more has to be there than those that are held"
    assert spare.hold()
    spare.give_up()
    spare.give_up()
