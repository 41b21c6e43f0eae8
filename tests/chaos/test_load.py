"""How long requests are sent."""

from __future__ import annotations

import asyncio
import io
import time

import pytest
from rich.console import Console

from tests.chaos.display import Display
from tests.chaos.judge import Reply
from tests.chaos.load import Load
from tests.chaos.record import Record
from tests.chaos.workload import Ask, Case, draw_asks


class Client:
    """Answers nothing, at once."""

    async def ask(self, ask: Ask) -> Reply:
        return Reply(ask.number, 0.0, 0.0, broken="nobody is there")


@pytest.mark.parametrize("least", [0, 40])
def test_they_are_sent_until_their_time_is_over_and_are_as_many_as_wanted(least: int) -> None:
    record, began = Record("x", 1, 0.1), time.monotonic()
    shown = Display(Console(file=io.StringIO()))
    load = Load(Client(), record, shown, lambda: time.monotonic() - began)  # type: ignore[arg-type]
    asyncio.run(load.run(draw_asks(1, 100.0, [Case([1], "ab")]), 0.1, least))
    assert [each.reply.number for each in record.outcomes] == list(range(len(record.outcomes)))
    assert len(record.outcomes) >= max(1, least)
    if not least:
        assert len(record.outcomes) < 40
