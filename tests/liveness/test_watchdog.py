from __future__ import annotations

import threading
import time

import pytest
from wavepp_worker.errors import StepTimeout
from wavepp_worker.liveness.watchdog import Watchdog

from tests.support.waiting import wait_until

PERIOD = 0.01


def test_a_thread_that_takes_too_long_is_named_once_with_where_it_hangs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hangs: list[StepTimeout] = []
    looks: list[float] = []
    dog = Watchdog(hangs.append, lambda: looks.append(time.monotonic()), PERIOD)
    well, ill, release = dog.watch("well"), dog.watch("LOOP"), threading.Event()

    def the_place_it_hangs_in() -> None:
        ill.busy("wave 7", 0.2)
        release.wait(30)

    thread = threading.Thread(target=the_place_it_hangs_in)
    thread.start()
    began = time.monotonic()
    dog.start()
    while not hangs and time.monotonic() < began + 20:
        well.busy("many short steps", 0.2)
        time.sleep(0.001)
    release.set()
    thread.join()
    assert time.monotonic() - began >= 0.2
    assert len(looks) >= 3, "it looks while all is well"
    time.sleep(10 * PERIOD)
    assert len(hangs) == 1
    assert str(hangs[0]).startswith("the LOOP thread has been busy with wave 7 for 0.")
    assert str(hangs[0]).endswith("which may take 0.2 s; raise wave_timeout if it is only slow")
    assert "the_place_it_hangs_in" in capsys.readouterr().err


def test_a_thread_that_waits_for_work_may_wait_for_ever() -> None:
    hangs: list[StepTimeout] = []
    looks: list[None] = []
    dog = Watchdog(hangs.append, lambda: looks.append(None), PERIOD)
    watched = dog.watch("LOOP")
    watched.busy("wave 7", 5 * PERIOD)
    dog.start()
    watched.idle()
    wait_until(lambda: len(looks) > 20)
    dog.close()
    dog.close()
    wait_until(lambda: not any(thread.name == "watchdog" for thread in threading.enumerate()))
    assert hangs == []
