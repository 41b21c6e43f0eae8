from __future__ import annotations

from wavepp_worker.intake.sentences import MOST_CHARACTERS, shortened


def test_what_is_too_long_keeps_its_beginning_and_its_end() -> None:
    most = "x" * MOST_CHARACTERS
    assert shortened(most) == most
    cut = shortened("begins" + most + "ends")
    assert len(cut) == MOST_CHARACTERS
    assert (cut[:7], cut[-5:], " ... " in cut) == ("beginsx", "xends", True)
