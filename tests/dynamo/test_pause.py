"""A worker that an operator pauses and resumes: what it takes, refuses and says meanwhile."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from dynamo._core import Context
from dynamo.llm.exceptions import Unknown
from wavepp_worker.dynamo import pause as pause_module

from tests.support import fake_engines as fakes
from tests.support.dynamo_workers import FakeEndpoint, collect, prompt, reasons, run, started
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("fake_engines")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frontends hear at once who has left discovery."""
    monkeypatch.setattr(pause_module, "HEARD_SECONDS", 0.0)
    monkeypatch.setattr(pause_module, "POLL_SECONDS", 0.001)


class Discovery(FakeEndpoint):
    """An endpoint whose entry comes and goes as the worker says; ``broken`` if it cannot."""

    registered = 0
    broken = False

    async def unregister_endpoint_instance(self) -> None:
        await self._change(entered=False)
        self.unregistered += 1

    async def register_endpoint_instance(self) -> None:
        await self._change(entered=True)
        self.registered += 1

    async def _change(self, *, entered: bool) -> None:
        await asyncio.sleep(0)
        if self.broken:
            raise RuntimeError("no discovery")
        assert self.entered is not entered, "Dynamo complains of an entry that is there, or is not"
        self.entered = entered


async def present(kind: str, model: Path) -> tuple[Any, Discovery]:
    worker, endpoint = await started(kind, model), Discovery()
    await worker.on_endpoint_ready(endpoint)
    return worker, endpoint


def test_a_paused_worker_ends_what_it_has_refuses_what_comes_and_goes_on_once_it_is_resumed(
    kind: str, text_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 0.1)
    monkeypatch.setattr(fakes.FakeDecodeEngine, "delay", 0.03)

    async def check() -> None:
        worker, endpoint = await present(kind, text_model)
        running = asyncio.create_task(collect(worker, prompt(kind), Context("running")))
        await asyncio.sleep(0.02)
        assert await worker.engine_control("pause", {"timeout_s": 0}) == {
            "status": "ok", "paused": True, "quiet": False, "running": 1,
        }  # fmt: skip
        assert not endpoint.entered
        assert (await worker.engine_control("describe", {}))["paused"] is True
        with pytest.raises(Unknown, match="WorkerPaused: this worker is paused and takes no requests"):
            await collect(worker, prompt(kind, room=2), Context("late"))
        if kind == "prefill":
            with pytest.raises(Unknown, match="is paused"):
                await collect(worker, prompt(kind, bootstrap_info={"bootstrap_room": 9}), Context("later"))
            assert "is paused" in (fakes.FakeBootstrap.room(9).failure or ""), "who claims it is told at once"
        payload = await worker.health_check_payload()
        assert reasons(await collect(worker, payload, Context("probe"))) == ["length"], "it is well"
        assert reasons(await running) == ["length"]
        again = await worker.engine_control("pause", {})
        assert (again["quiet"], again["running"], endpoint.unregistered) == (True, 0, 1)
        assert await worker.engine_control("resume", {}) == {
            "status": "ok",
            "paused": False,
            "was_paused": True,
        }
        assert reasons(await collect(worker, prompt(kind, room=3), Context("after"))) == ["length"]
        assert (await worker.engine_control("resume", {}))["was_paused"] is False
        assert endpoint.registered == 1
        said = capsys.readouterr().err
        assert said == "PAUSED: takes no new requests until it is resumed\nRESUMED: takes requests again\n"
        await worker.cleanup()

    run(check())


def test_a_paused_worker_is_not_taken_for_one_that_discovery_forgot(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wavepp_worker.dynamo import presence

    monkeypatch.setattr(presence, "TICK_SECONDS", 0.002)

    async def check() -> None:
        worker, endpoint = await present("prefill", text_model)
        lost: list[str] = []
        worker.leave = lost.append
        await worker.engine_control("pause", {})
        looks = endpoint.looks
        await asyncio.sleep(0.1)
        assert (lost, endpoint.looks) == ([], looks)
        await worker.engine_control("resume", {})
        endpoint.entered = False
        while not lost:
            await asyncio.sleep(0.002)
        await worker.cleanup()

    run(check())


def test_pauses_take_no_more_of_dynamo_than_one_client(text_model: Path) -> None:
    """Of a client Dynamo keeps a thread, descriptors and an inotify instance, of which a user has but 128."""

    async def check() -> None:
        worker, endpoint = await present("prefill", text_model)
        for _ in range(3):
            await worker.engine_control("pause", {})
            await worker.engine_control("resume", {})
            looks = endpoint.looks
            await until(lambda looks=looks: endpoint.looks > looks)
        assert endpoint.clients == 1
        await worker.cleanup()

    run(check())


def test_what_cannot_be_done_is_said_and_leaves_the_worker_as_it_was(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("prefill", text_model)
        early = await worker.engine_control("pause", {})
        assert early == {
            "status": "error",
            "message": "this worker is not in discovery: it starts, or leaves",
        }
        endpoint = Discovery()
        await worker.on_endpoint_ready(endpoint)
        for body, sentence in (
            ({"timeout": 3}, "timeout: unknown; pause takes timeout_s, how long to wait for requests to end"),
            ({"timeout_s": "3"}, "timeout_s='3' should be a number of seconds from 0 to 600"),
            ({"timeout_s": -1}, "timeout_s=-1 should be a number of seconds from 0 to 600"),
            ([], "the body of pause should be a JSON object, or empty"),
        ):
            assert await worker.engine_control("pause", body) == {"status": "error", "message": sentence}
        endpoint.broken = True
        refused = await worker.engine_control("pause", {})
        assert refused["status"] == "error"
        assert (
            "could not leave discovery within 5 s (RuntimeError: no discovery); try again"
            in refused["message"]
        )
        assert reasons(await collect(worker, prompt("prefill"), Context("r"))) == ["length"]
        assert worker._presence is not None
        assert not worker._presence.done(), "it still looks whether discovery has it"
        endpoint.broken = False
        assert (await worker.engine_control("pause", {}))["status"] == "ok"
        endpoint.broken = True
        assert "could not come back" in (await worker.engine_control("resume", {}))["message"]
        with pytest.raises(Unknown, match="is paused"):
            await collect(worker, prompt("prefill", room=2), Context("s"))
        endpoint.broken = False
        worker.told_to_stop()
        assert (await worker.engine_control("resume", {}))["status"] == "error", "it leaves"
        await worker.cleanup()

    run(check())


def test_whoever_gives_up_a_pause_that_has_just_begun_leaves_the_worker_watched(text_model: Path) -> None:
    async def check() -> None:
        worker, endpoint = await present("prefill", text_model)
        pausing = asyncio.create_task(worker.engine_control("pause", {}))
        watching = worker._presence
        while not watching.cancelling():
            await asyncio.sleep(0)
        pausing.cancel()
        await asyncio.gather(pausing, return_exceptions=True)
        assert endpoint.entered
        assert worker._presence is not watching, "it still looks whether discovery has it"
        await worker.cleanup()

    run(check())


def test_a_worker_takes_requests_again_that_was_resumed_while_its_pause_still_waited(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 0.1)

    class Slow(Discovery):
        """Takes long enough that a pause looks several times whether its requests have ended."""

        async def _change(self, *, entered: bool) -> None:
            await asyncio.sleep(0.02)
            await super()._change(entered=entered)

    async def check() -> None:
        worker, endpoint = await started("prefill", text_model), Slow()
        await worker.on_endpoint_ready(endpoint)
        running = asyncio.create_task(collect(worker, prompt("prefill"), Context("running")))
        pausing = asyncio.create_task(worker.engine_control("pause", {}))
        while not worker._pause._refuses:
            await asyncio.sleep(0.001)
        assert (await worker.engine_control("resume", {}))["was_paused"] is True
        assert "was resumed before it was quiet" in (await pausing)["message"]
        assert reasons(await running) == ["length"]
        assert reasons(await collect(worker, prompt("prefill", room=2), Context("after"))) == ["length"]
        await worker.cleanup()

    run(check())


@pytest.mark.parametrize("seed", range(5))
def test_a_storm_of_pauses_and_resumes_ends_as_the_last_one_says(seed: int, text_model: Path) -> None:
    async def check() -> None:
        draw = random.Random(seed)
        worker, endpoint = await present("prefill", text_model)
        asked, answered, refused = [], 0, []
        for number in range(60):
            await asyncio.sleep(draw.choice((0.0, 0.0, 0.002)))
            if draw.random() < 0.5:
                name = draw.choice(("pause", "resume"))
                asked.append(asyncio.create_task(worker.engine_control(name, {})))
                continue
            try:
                request = prompt("prefill", room=number)
                assert reasons(await collect(worker, request, Context(f"r{number}"))) == ["length"]
                answered += 1
            except Unknown as error:
                refused.append(str(error))
        for answer in await asyncio.gather(*asked):
            assert answer["status"] == "ok" or "was resumed before it was quiet" in answer["message"]
        assert answered
        assert refused
        assert all("is paused" in each for each in refused)
        await worker.engine_control("resume", {})
        assert endpoint.entered
        assert reasons(await collect(worker, prompt("prefill", room=1000), Context("last"))) == ["length"]
        assert endpoint.registered == endpoint.unregistered
        await worker.cleanup()

    run(check())
