"""Our KV events at a router of Dynamo's own: what it believes of a worker is what the worker has, on every tier."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from wavepp_worker import token_ids
from wavepp_worker.cache.moves import Tier
from wavepp_worker.runtime.protocol.index_delta import IndexDelta
from wavepp_worker.serve.broker import Broker
from wavepp_worker.serve.ports import HeldPorts

from tests.support.event_worker import BLOCK
from tests.support.observer_router import REPOSITORY, ObserverRouter, observer
from tests.support.waiting import wait_until

NAMESPACE = "events"


class EventPlane:
    """A worker without a model, and the event plane between it and routers."""

    def __init__(self, store: Path, model: Path, port: int) -> None:
        self.broker = Broker()
        self.environment = {
            **os.environ,
            "DYN_FILE_KV": str(store),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "lo",
            "DYN_ZMQ_BROKER_URL": self.broker.url,
            "HF_HUB_OFFLINE": "1",
        }
        self.url = f"http://127.0.0.1:{port}"
        words = ["--model-name", str(model), "--namespace", NAMESPACE, "--component", "prefill"]
        words += ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.event_worker", *words],
            env={**self.environment, "DYN_SYSTEM_PORT": str(port), "DYN_SYSTEM_HOST": "127.0.0.1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=REPOSITORY,
        )
        wait_until(self._is_well)
        self.worker = int(self.control("apply")["worker"])

    def _is_well(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    def control(self, name: str, **body: Any) -> dict[str, Any]:
        return httpx.post(f"{self.url}/engine/control/{name}", json=body, timeout=10).json()

    def apply(self, *deltas: IndexDelta) -> None:
        self.control("apply", deltas=msgspec.to_builtins(list(deltas)))

    def interrupted(self, meanwhile: Callable[[], None]) -> None:
        """Nobody carries events while ``meanwhile`` runs; what is published then is lost."""
        inward, outward = (part.strip().partition("=")[2] for part in self.broker.url.split(","))
        self.broker.close()
        meanwhile()
        self.broker = Broker(inward, outward)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.broker.close()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[EventPlane]:
    held = HeldPorts()
    store = tmp_path_factory.mktemp("store")
    (port,) = held.choose(1)
    running = EventPlane(store, text_model, port)
    yield running
    running.close()
    held.close()


@pytest.fixture(scope="module")
def router(plane: EventPlane) -> Iterator[ObserverRouter]:
    with observer(plane.environment, NAMESPACE, BLOCK) as running:
        yield running


class Prompt:
    """A prompt of ten blocks that no other shares; hash and tokens of a block follow from its place."""

    def __init__(self, number: int, salt: str = "") -> None:
        self.tokens = [100 * number + at for at in range(10 * BLOCK)]
        self._first, self._salt = 1000 * number, salt

    def hashes(self, first: int, end: int) -> tuple[int, ...]:
        return tuple(range(self._first + first, self._first + end))

    def stored(self, first: int, end: int, tier: Tier = Tier.DEVICE) -> IndexDelta:
        tokens = token_ids.pack(self.tokens[BLOCK * first : BLOCK * end])
        parent = self._first + first - 1 if first else None
        return IndexDelta(
            stored=self.hashes(first, end), parent=parent, tokens=tokens, salt=self._salt, tier=tier
        )

    def moved(self, first: int, end: int, tier: Tier) -> IndexDelta:
        return IndexDelta(moved=self.hashes(first, end), tier=tier)

    def removed(self, first: int, end: int) -> IndexDelta:
        return IndexDelta(removed=self.hashes(first, end)[::-1])


def many_events(number: int) -> list[IndexDelta]:
    """More events than Dynamo keeps for routers that miss some: each of one block on the device."""
    blocks = range(1_000_000 * number, 1_000_000 * number + 1100)
    return [IndexDelta(stored=(block,), tokens=token_ids.pack([block] * BLOCK)) for block in blocks]


@contextmanager
def nothing_told_again(plane: EventPlane) -> Iterator[None]:
    plane.control("mute")
    try:
        yield
    finally:
        plane.control("unmute")


def believes(plane: EventPlane, router: ObserverRouter, prompt: Prompt, *blocks: int, **options: Any) -> None:
    """Wait until the router knows so many first blocks on the device, to the host, and to the disk."""
    found: list[Any] = []

    def so() -> bool:
        found[:] = [router.overlap(prompt.tokens, **options).get(plane.worker)]
        return found == [blocks]

    try:
        wait_until(so)
    except AssertionError as error:
        raise AssertionError(f"the router believes {found[0]}, the worker has {blocks}") from error


def test_s62_s63_a_router_knows_which_blocks_are_on_which_tier(
    plane: EventPlane, router: ObserverRouter
) -> None:
    """Overlap at the router, under the one dp rank of a replica; blocks go down the tiers, up again, and away."""
    prompt = Prompt(1)
    plane.apply(prompt.stored(0, 6))
    believes(plane, router, prompt, 6, 6, 6)
    plane.apply(prompt.moved(4, 6, Tier.HOST))
    believes(plane, router, prompt, 4, 6, 6)
    plane.apply(prompt.moved(5, 6, Tier.DISK))
    believes(plane, router, prompt, 4, 5, 6)
    plane.apply(*(prompt.moved(at, at + 1, Tier.DISK) for at in (4, 3, 2, 1, 0)))
    believes(plane, router, prompt, 0, 0, 6)
    plane.apply(prompt.moved(0, 2, Tier.DEVICE))
    believes(plane, router, prompt, 2, 2, 6)
    plane.apply(prompt.removed(3, 6))
    believes(plane, router, prompt, 2, 2, 3)
    rows = router.ask(overlap=prompt.tokens)["workers"]
    assert [(row["worker_id"], row["dp_rank"]) for row in rows] == [(plane.worker, 0)], "S61: one publisher"


def test_two_tenants_share_nothing_at_the_router(plane: EventPlane, router: ObserverRouter) -> None:
    prompt = Prompt(2, salt="one")
    plane.apply(prompt.stored(0, 3))
    believes(plane, router, prompt, 3, 3, 3, cache_namespace="one")
    believes(plane, router, prompt, 0, 0, 0, cache_namespace="other")
    believes(plane, router, prompt, 0, 0, 0)


def test_s64_a_router_that_comes_later_or_loses_the_worker_for_a_while_knows_the_same(
    plane: EventPlane, router: ObserverRouter
) -> None:
    prompt = Prompt(3)
    plane.apply(prompt.stored(0, 6), prompt.moved(5, 6, Tier.HOST), prompt.moved(2, 5, Tier.HOST))
    believes(plane, router, prompt, 2, 6, 6)
    with observer(plane.environment, NAMESPACE, BLOCK) as new:
        believes(plane, new, prompt, 2, 6, 6)
        assert new.blocks() == router.blocks()
    plane.control("leave")
    wait_until(lambda: router.overlap(prompt.tokens) == {})
    plane.apply(prompt.removed(5, 6))
    plane.control("return")
    believes(plane, router, prompt, 2, 5, 5)


def test_s64_what_was_restored_from_disk_is_known_to_a_router_that_comes_after_it_was_told(
    plane: EventPlane, router: ObserverRouter
) -> None:
    """Dynamo tells a new router of what is on the device alone."""
    prompt, other = Prompt(7), Prompt(8)
    plane.apply(prompt.stored(0, 6, Tier.DISK), other.stored(0, 5), other.moved(2, 5, Tier.HOST))
    believes(plane, router, prompt, 0, 0, 6)
    with observer(plane.environment, NAMESPACE, BLOCK) as new:
        believes(plane, new, prompt, 0, 0, 6)
        believes(plane, new, other, 2, 5, 5)
    plane.apply(prompt.removed(4, 6))
    believes(plane, router, prompt, 0, 0, 4)


def test_s64_what_was_lost_with_the_event_plane_is_known_once_it_is_back(
    plane: EventPlane, router: ObserverRouter
) -> None:
    """The first event that comes again shows the router that it lacks some, and it asks the worker for them."""
    gone, come, later = Prompt(4), Prompt(5), Prompt(6)
    plane.apply(gone.stored(0, 6))
    believes(plane, router, gone, 6, 6, 6)
    plane.interrupted(lambda: plane.apply(gone.removed(1, 6), come.stored(0, 4), come.moved(3, 4, Tier.DISK)))

    def heard() -> bool:
        # Until publisher and router are connected again, these are lost as well.
        plane.apply(later.stored(0, 1), later.removed(0, 1))
        return router.overlap(come.tokens).get(plane.worker) == (3, 3, 4)

    wait_until(heard)
    believes(plane, router, gone, 1, 1, 1)
    believes(plane, router, come, 3, 3, 4)
    believes(plane, router, later, 0, 0, 0)


def test_s64_what_leaves_a_lower_tier_leaves_it_at_a_router_that_does_not_know_all_of_it(
    plane: EventPlane, router: ObserverRouter
) -> None:
    """A removal of several blocks, of which the router does not know the first."""
    early, late = Prompt(30), Prompt(31)
    many = many_events(30)
    plane.apply(early.stored(0, 6, Tier.DISK), *many)
    believes(plane, router, early, 0, 0, 6)
    # Otherwise the new router might get the events, and not what is on the device.
    wait_until(lambda: router.blocks()[plane.worker].issuperset(delta.stored[0] for delta in many))
    with nothing_told_again(plane), observer(plane.environment, NAMESPACE, BLOCK) as new:
        wait_until(lambda: new.blocks() == router.blocks() != {})
        # Dynamo 1.4 tells it of the device alone, 1.6 of all tiers.
        assert new.overlap(early.tokens)[plane.worker] in ((0, 0, 0), (0, 0, 6))
        plane.apply(late.stored(0, 6, Tier.DISK))
        believes(plane, new, late, 0, 0, 6)
        plane.apply(IndexDelta(removed=early.hashes(5, 6) + late.hashes(2, 6)[::-1]))
        for each in (router, new):
            believes(plane, each, late, 0, 0, 2)
        plane.control("unmute")
        believes(plane, new, early, 0, 0, 5)
        plane.control("mute")
    believes(plane, router, early, 0, 0, 5)


def test_s64_what_left_lower_tiers_while_more_was_lost_than_dynamo_keeps_is_known_to_be_gone(
    plane: EventPlane, router: ObserverRouter
) -> None:
    """The router forgets what is below the device, learns it again, and never believes more than there is."""
    gone, kept, come = Prompt(40), Prompt(41), Prompt(42)
    plane.apply(*(prompt.stored(0, 6, tier) for prompt, tier in ((gone, Tier.HOST), (kept, Tier.DISK))))
    believes(plane, router, gone, 0, 6, 6)
    believes(plane, router, kept, 0, 0, 6)

    def lost() -> None:
        plane.apply(gone.removed(2, 6), come.stored(0, 3, Tier.DISK), *many_events(40))
        plane.apply(*many_events(41))

    with nothing_told_again(plane):
        plane.interrupted(lost)
    # What is told again is the first that comes through.
    believes(plane, router, gone, 0, 2, 2)
    believes(plane, router, kept, 0, 0, 6)
    believes(plane, router, come, 0, 0, 3)
    plane.apply(gone.removed(0, 2), kept.removed(1, 6))
    believes(plane, router, gone, 0, 0, 0)
    believes(plane, router, kept, 0, 0, 1)


def test_s64_a_router_notices_what_it_missed_of_a_worker_where_nothing_happens(
    plane: EventPlane, router: ObserverRouter
) -> None:
    prompt = Prompt(50)
    plane.apply(prompt.stored(0, 6))
    believes(plane, router, prompt, 6, 6, 6)
    plane.interrupted(lambda: plane.apply(prompt.removed(1, 6)))
    believes(plane, router, prompt, 1, 1, 1)
