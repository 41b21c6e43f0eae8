"""Requests without a pause, many at a time, each judged when its answer is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from tests.chaos.client import Client
from tests.chaos.display import Display
from tests.chaos.judge import Verdict, judge
from tests.chaos.record import Outcome, Record
from tests.chaos.workload import Ask, Case, Manner

MOST_AT_ONCE = 48
"""Requests that wait at a time; while so many do, no further one is sent."""


class Load:
    """Asks one graph and notes outcomes in a record."""

    def __init__(self, client: Client, record: Record, display: Display, now: Callable[[], float]) -> None:
        self._client = client
        self._record = record
        self._display = display
        self._now = now

    async def run(self, asks: Iterable[Ask], until: float, least: int = 0) -> None:
        """Send ``asks`` when they are due, and wait for all answers.

        Args:
            until: the instant up to which they are sent, if these are at least ``least``; else until they are.
        """
        slots = asyncio.Semaphore(MOST_AT_ONCE)
        running: set[asyncio.Task[None]] = set()

        async def one(ask: Ask) -> None:
            try:
                outcome = await self._one(ask)
            finally:
                slots.release()
            self._record.outcomes.append(outcome)
            self._display.outcome(outcome.verdict, outcome.reply)

        for ask in asks:
            await slots.acquire()
            await asyncio.sleep(ask.at - self._now())
            if self._now() > until and ask.number >= least:
                slots.release()
                break
            task = asyncio.create_task(one(ask))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def all_right(self, cases: Sequence[Case], when: str) -> None:
        """Ask for each case at once; an outcome that is not right is noted as broken."""
        bodies = [{"prompt": case.prompt, "max_tokens": len(case.text), "temperature": 0} for case in cases]
        asks = [
            Ask(number, 0.0, Manner.WHOLE, body, case.text)
            for number, (body, case) in enumerate(zip(bodies, cases, strict=True))
        ]
        for outcome in await asyncio.gather(*map(self._one, asks)):
            if outcome.verdict is not Verdict.RIGHT:
                self._record.broken.append(f"{when}: {outcome.verdict.value}: {outcome.reply}")

    async def _one(self, ask: Ask) -> Outcome:
        reply = await self._client.ask(ask)
        return Outcome(ask.manner, reply, judge(ask, reply))
