"""The first signal asks for an orderly end, a further one cuts off."""

from __future__ import annotations

import signal
import threading

import pytest
from wavepp_worker.runtime.client.stop_signals import SIGNALS, StopSignals


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_stops_in_another_thread_and_the_next_interrupts(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    stopped: list[threading.Thread] = []
    with StopSignals(lambda: stopped.append(threading.current_thread())) as signals:
        signal.raise_signal(number)
        assert signals.received == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signals.received == number
    assert len(stopped) == 1, "waited for, and called once"
    assert stopped[0] is not threading.current_thread()
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_without_a_signal_nothing_is_stopped() -> None:
    with StopSignals(pytest.fail) as signals:
        pass
    assert signals.received == 0
