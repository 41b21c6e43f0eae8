"""Nobody carries KV events for ten seconds under load: afterwards routers believe of every replica what it has."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.serve.broker import Broker
from wavepp_worker.serve.environment import BROKER_VARIABLE

from tests.support.observer_router import ObserverRouter, environment_of, observer
from tests.support.served_graph import ServedGraph

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

BLOCK = 16
AWAY_SECONDS = 10.0
TOLD_AGAIN_SECONDS = 45.0
"""Within which a router hears of all that is below devices, and some room."""
ARRIVES_SECONDS = 60.0
"""Within which events are at a router, also where much else runs."""
SALTS = ("", "one", "two")


class HeldBroker:
    """The event plane's meeting point, in this process."""

    def __init__(self) -> None:
        # Not pytest's directories: sockets need short paths.
        self.directory = Path(tempfile.mkdtemp(prefix="wb-"))
        self._sides = [f"ipc://{self.directory}/{side}" for side in ("in", "out")]
        self._broker = Broker(*self._sides)
        self.environment = {BROKER_VARIABLE: self._broker.url}

    def stop(self) -> None:
        self._broker.close()

    def start(self) -> None:
        self._broker = Broker(*self._sides)


@pytest.fixture(scope="module")
def broker() -> Iterator[HeldBroker]:
    held = HeldBroker()
    yield held
    held.stop()
    shutil.rmtree(held.directory)


@pytest.fixture(scope="module")
def graph(
    broker: HeldBroker,
    start: Callable[..., ServedGraph],
    ascii_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> ServedGraph:
    """Replicas that hold on devices a part of what is asked, and more of it in host memory and on disk."""
    return start(
        "graphs:disagg_wavepp",
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        "--Common.max_model_len=1024",
        "--PrefillWorker.kv_tokens=2048",
        "--PrefillWorker.host_kv_tokens=1024",
        "--PrefillWorker.disk_kv_tokens=4096",
        f"--PrefillWorker.disk_path={tmp_path_factory.mktemp('disk')}",
        env=broker.environment,
    )


def prompts() -> list[list[int]]:
    draw = random.Random(31)
    return [[draw.randrange(256) for _ in range(320)] for _ in range(12)]


def prefilled(graph: ServedGraph, prompt: list[int], salt: str) -> tuple[int, int]:
    """Who prefilled a request, and how many tokens of it were reused."""
    named = {"cache_salt": salt} if salt else {}
    answer = graph.complete(prompt, max_tokens=2, nvext={"extra_fields": ["worker_id"]}, **named)
    reused: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["nvext"]["worker_id"]["prefill_worker_id"], reused


def believed(router: ObserverRouter, prompt: list[int], salt: str) -> dict[int, tuple[int, int, int]]:
    named = {"cache_namespace": salt} if salt else {}
    return router.overlap(prompt, **named)


def tree(router: ObserverRouter) -> list[Any]:
    """What a router believes of every prefix of every tenant, on every tier."""
    return [believed(router, prompt, salt) for prompt in prompts() for salt in SALTS]


def settled(graph: ServedGraph, look: Callable[[], Any]) -> Any:
    """What is seen once it stays the same for a while: no events are on their way any more."""
    seen = [look()]

    def stays() -> bool:
        time.sleep(0.4)
        seen.append(look())
        return bool(seen[-2] == seen[-1])

    graph.running.wait_for(stays, ARRIVES_SECONDS)
    return seen[-1]


def check_against_replicas(graph: ServedGraph, router: ObserverRouter) -> None:
    """Requests, one at a time, reuse exactly what the router believes to be at the replica that gets them."""
    draw = random.Random(5)
    wrong, tiers = [], Counter[int]()
    for prompt in prompts():
        for salt in SALTS:
            asked = [*prompt, *(draw.randrange(256) for _ in range(20))]
            before = believed(router, asked, salt)
            worker, reused = prefilled(graph, asked, salt)

            def arrived(asked: list[int] = asked, salt: str = salt, worker: int = worker) -> bool:
                return believed(router, asked, salt).get(worker, (0, 0, 0))[2] == len(asked) // BLOCK

            graph.running.wait_for(arrived, ARRIVES_SECONDS)
            settled(graph, lambda: tree(router))
            foretold = before.get(worker, (0, 0, 0))
            tiers.update(dict(enumerate(foretold)))
            if foretold[2] * BLOCK != reused:
                wrong.append((worker, foretold, reused))
    assert not wrong
    assert tiers[0] < tiers[2], "something is below devices"


def under_load(graph: ServedGraph, meanwhile: Callable[[], None]) -> Counter[int]:
    over = threading.Event()
    codes: Counter[int] = Counter()

    def client(number: int) -> None:
        draw = random.Random(number)
        while not over.is_set():
            prompt = [*draw.choice(prompts()), *(draw.randrange(256) for _ in range(40))]
            salt = draw.choice(SALTS)
            named = {"cache_salt": salt} if salt else {}
            codes[graph.post("/v1/completions", prompt=prompt, max_tokens=2, **named).status_code] += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    for thread in clients:
        thread.start()
    try:
        meanwhile()
    finally:
        over.set()
        for thread in clients:
            thread.join(60)
    return codes


def test_s64_routers_believe_what_replicas_have_once_the_event_plane_is_back(
    graph: ServedGraph, broker: HeldBroker
) -> None:
    (frontend,) = graph.workers("Frontend")
    environment, namespace = environment_of(frontend["pid"]), graph.running.state()["namespace"]
    with observer(environment, namespace, BLOCK) as router:

        def lost() -> None:
            # S61: two replicas of two ranks each are two publishers.
            graph.running.wait_for(lambda: len(router.blocks()) == 2, 30)
            broker.stop()
            before = settled(graph, router.blocks)
            time.sleep(AWAY_SECONDS)
            assert router.blocks() == before
            with observer(environment, namespace, BLOCK) as new:
                graph.running.wait_for(lambda: len(new.blocks()) == 2, 30)
                graph.running.wait_for(lambda: new.blocks() != before, 30)  # something was lost
            broker.start()

        codes = under_load(graph, lost)
        assert set(codes) == {200}, codes
        graph.audit()
        # The first event of a replica that comes through shows what is missing, and Dynamo keeps so many events only.
        time.sleep(TOLD_AGAIN_SECONDS)
        check_against_replicas(graph, router)
        with observer(environment, namespace, BLOCK) as new:
            graph.running.wait_for(
                lambda: (tree(new), new.blocks()) == (tree(router), router.blocks()), TOLD_AGAIN_SECONDS
            )
        for service in ("Frontend", "PrefillWorker"):
            assert {worker["restarts"] for worker in graph.workers(service)} == {0}


def test_s64_what_a_replica_finds_on_disk_after_a_restart_is_known(graph: ServedGraph) -> None:
    (frontend,) = graph.workers("Frontend")
    namespace = graph.running.state()["namespace"]
    before = graph.workers("PrefillWorker")[0]
    with observer(environment_of(frontend["pid"]), namespace, BLOCK) as router:
        os.kill(before["pid"], signal.SIGTERM)

        def back() -> bool:
            now = graph.workers("PrefillWorker")[0]
            return now["pid"] != before["pid"] and now["ready"]

        graph.running.wait_for(back, 60)
        new = int(graph.workers("PrefillWorker")[0]["about"]["instance"], 16)

        def restored() -> bool:
            return any(of.get(new, (0, 0, 0))[2] for of in tree(router))

        graph.running.wait_for(restored, TOLD_AGAIN_SECONDS)
        # What the other replica has below its device is told again within that.
        time.sleep(TOLD_AGAIN_SECONDS)
        check_against_replicas(graph, router)
