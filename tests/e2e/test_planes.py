"""The graph where processes find each other by etcd, and hear each other over TCP and ZeroMQ or over NATS alone."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import served
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.nats_servers import NatsServer
from tests.support.planner_process import PassListener, PlannerProcess
from tests.support.reference import Reference
from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e
NAMES = ["etcd-tcp-zmq", "etcd-nats-nats"]
"""Of the planes: discovery, requests, events."""
EVERYWHERE = pytest.mark.parametrize("planes", NAMES, indirect=True, scope="module")
NATS_IN_SOAK = pytest.mark.parametrize(
    "planes", [NAMES[0], pytest.param(NAMES[1], marks=pytest.mark.soak)], indirect=True, scope="module"
)
WITH_ETCD = pytest.mark.parametrize("planes", NAMES[:1], indirect=True, scope="module")
"""The other planes are no different for the launcher."""
LENGTH = 400
ANSWER = 6


@dataclass
class Planes:
    """A running graph, and the server of its planes that is to fail.

    Attributes:
        fatal: whether processes end of that.
        names: of its planes, by Dynamo's.
    """

    etcd: EtcdServer
    graph: ServedGraph
    server: EtcdServer | NatsServer
    fatal: bool
    names: tuple[str, ...]


@pytest.fixture(
    scope="module", params=["etcd-tcp-zmq", pytest.param("etcd-nats-nats", marks=pytest.mark.soak)]
)
def planes(
    request: pytest.FixtureRequest, ascii_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Planes]:
    require_etcd()
    discovery, requests, events = request.param.split("-")
    with ExitStack() as stack:
        etcd = EtcdServer(tmp_path_factory.mktemp("etcd"))
        stack.callback(etcd.close)
        etcd.start()
        server: EtcdServer | NatsServer = etcd
        variables, replicas = {"ETCD_ENDPOINTS": etcd.url}, 1
        if events == "nats":
            replicas = 2
            server = NatsServer(tmp_path_factory.mktemp("nats"))
            stack.callback(server.close)
            server.start()
            variables["NATS_SERVER"] = server.url
            # Who is killed has to be taken out of discovery by somebody.
            variables["ETCD_LEASE_TTL"] = "60"
        with served(
            "graphs:disagg_wavepp",
            f"--Common.model={ascii_model}",
            "--Common.dtype=float32",
            "--Common.kv_tokens=16384",
            "--PrefillWorker.pp=1",
            f"--PrefillWorker.ServiceArgs.workers={replicas}",
            # Else the router counts what it foretells as heard.
            "--Frontend.router_predicted_ttl_secs=null",
            "--dynamo-planner",
            "--Common.perf_metrics=true",
            f"--Common.discovery_backend={discovery}",
            f"--Common.request_plane={requests}",
            f"--Common.event_plane={events}",
            env=variables,
        ) as graph:
            assert etcd.keys("v1/instances/")
            yield Planes(etcd, graph, server, server is etcd, tuple(request.param.split("-")))
        # A planner's decisions end with its own lease, and so does what serves the measurements of a killed worker.
        left = [key for key in etcd.keys("v1/") if "/planner/" not in key and "/get_perf_metrics/" not in key]
        assert left == [], left


@pytest.fixture
def graph(planes: Planes) -> ServedGraph:
    return planes.graph


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(256) for _ in range(length)]


def ask(graph: ServedGraph, tokens: list[int]) -> dict[str, Any]:
    return graph.complete(tokens, max_tokens=ANSWER, nvext={"extra_fields": ["worker_id", "timing"]})


def heard(graph: ServedGraph) -> float:
    """Events of stored blocks that the router has applied."""
    lines = graph.http.get("/metrics").text.splitlines()
    name = "dynamo_component_kv_cache_events_applied{"
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith(name) and 'event_type="stored"' in line and 'status="ok"' in line
    )


def is_reused(graph: ServedGraph, reference: Reference, seed: int) -> None:
    """A prompt that is new, and then once more with another end: the router has heard of its blocks meanwhile."""
    before, shared = heard(graph), prompt(seed)
    cold = ask(graph, shared)
    assert cold["choices"][0]["text"] == reference.text(shared, ANSWER)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    graph.running.wait_for(lambda: heard(graph) > before)
    longer = [*shared, *prompt(seed + 1, 20)]
    warm = ask(graph, longer)
    assert warm["choices"][0]["text"] == reference.text(longer, ANSWER)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == LENGTH
    assert warm["nvext"]["timing"]["kv_hit_rate"] > 0.9
    assert warm["nvext"]["worker_id"]["prefill_worker_id"] == cold["nvext"]["worker_id"]["prefill_worker_id"]


def answered(graph: ServedGraph, tokens: list[int], expected: str) -> bool:
    """Whether it is answered, and then rightly; a refusal has to be a sentence."""
    try:
        answer = graph.post("/v1/completions", prompt=tokens, max_tokens=ANSWER)
    except httpx.ConnectError:
        return False
    if answer.status_code == 503:
        assert answer.json()["message"]
        return False
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == expected
    return True


@EVERYWHERE
def test_texts_are_right_and_a_known_prefix_is_reused(graph: ServedGraph, reference: Reference) -> None:
    is_reused(graph, reference, 1)
    answer = graph.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": "Hello"}], max_tokens=ANSWER
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == ANSWER
    graph.audit()


def environment_of(pid: int) -> dict[str, str]:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(each.decode().split("=", 1) for each in variables if each)


@NATS_IN_SOAK
def test_a_planner_hears_of_each_wave_and_step(planes: Planes) -> None:
    """By Dynamo's own subscriber and decoder; the numbers are those of the requests."""
    graph = planes.graph
    (decode,) = graph.workers("DecodeWorker")
    environment = {
        name: value
        for name, value in environment_of(decode["pid"]).items()
        if name.startswith(("DYN_", "ETCD_", "NATS_"))
    }
    del environment["DYN_SYSTEM_PORT"]
    ids = {
        service: {
            str(int(graph.control(each, "describe")["instance"], 16)) for each in graph.workers(service)
        }
        for service in ("PrefillWorker", "DecodeWorker")
    }
    with (
        PassListener("dynamo.prefill.generate", planes.names, environment) as waves,
        PassListener("dynamo.backend.generate", planes.names, environment) as steps,
    ):
        # Each tells once a second that it is idle.
        idle: dict[str, set[str]] = {"PrefillWorker": set(), "DecodeWorker": set()}

        def all_known() -> bool:
            for service, listener in (("PrefillWorker", waves), ("DecodeWorker", steps)):
                idle[service] |= {each["worker_id"] for each in listener.passes()}
            return idle == ids

        graph.running.wait_for(all_known)
        begun = time.monotonic()
        ask(graph, prompt(60, LENGTH))
        seconds = time.monotonic() - begun
        heard: dict[str, list[dict[str, Any]]] = {"waves": [], "steps": []}

        def all_heard() -> bool:
            heard["waves"] += [each for each in waves.passes() if each["wall_time"] > 0]
            heard["steps"] += [each for each in steps.passes() if each["wall_time"] > 0]
            computed = sum(each["scheduled_requests"]["sum_prefill_tokens"] for each in heard["waves"])
            return computed >= LENGTH and len(heard["steps"]) >= ANSWER - 1

        graph.running.wait_for(all_heard)
    computed = [each["scheduled_requests"] for each in heard["waves"]]
    assert sum(each["sum_prefill_tokens"] for each in computed) == LENGTH
    assert [each["num_prefill_requests"] for each in computed] == [1] * len(computed)
    before = [
        sum(each["sum_prefill_tokens"] for each in computed[:number]) for number in range(len(computed))
    ]
    assert [each["sum_prefill_kv_tokens"] for each in computed] == before
    assert sum(each["wall_time"] for each in heard["waves"]) < seconds
    assert {each["worker_id"] for each in heard["waves"]} <= ids["PrefillWorker"]
    stepped = [each["scheduled_requests"] for each in heard["steps"]]
    assert [each["num_decode_requests"] for each in stepped] == [1] * (ANSWER - 1)
    assert [each["sum_decode_kv_tokens"] for each in stepped] == [
        LENGTH + 1 + step for step in range(ANSWER - 1)
    ]
    assert sum(each["wall_time"] for each in heard["steps"]) < seconds
    for each in (*heard["waves"], *heard["steps"]):
        assert set(each["queued_requests"].values()) == {0}
    for component, number, key in (("prefill", len(computed), "prefill"), ("backend", ANSWER - 1, "decode")):
        with PassListener(f"dynamo.{component}", planes.names, environment) as asked:
            known = [json.loads(asked.next_line(30)) for _ in range(number)]
        assert all(each["scheduled_requests"][f"num_{key}_requests"] for each in known)


@WITH_ETCD
def test_replicas_come_and_go_under_load_as_the_planner_decides(planes: Planes, reference: Reference) -> None:
    """Dynamo's coordinator lets the replicas of prefill go from 1 to 2 and back, and no request fails."""
    graph, seeds = planes.graph, itertools.count(1000)
    prompts = [prompt(seed, 60) for seed in range(900, 902)]
    expected = [reference.text(each, ANSWER) for each in prompts]
    answers: list[tuple[int, str]] = []
    used: set[int] = set()
    enough = threading.Event()

    def ask_on(number: int) -> None:
        while not enough.is_set():
            # What is new goes to whoever has less to do; what is known has a right answer.
            new = prompt(next(seeds), 60)
            answer = graph.post(
                "/v1/completions", prompt=new, max_tokens=ANSWER, nvext={"extra_fields": ["worker_id"]}
            )
            answers.append((answer.status_code, answer.text))
            if answer.status_code == 200:
                used.add(answer.json()["nvext"]["worker_id"]["prefill_worker_id"])
            known = graph.post("/v1/completions", prompt=prompts[number], max_tokens=ANSWER)
            right = known.status_code == 200 and known.json()["choices"][0]["text"] == expected[number]
            answers.append((200 if right else -1, known.text))

    with (
        PlannerProcess("dynamo", {"ETCD_ENDPOINTS": planes.etcd.url}) as planner,
        ThreadPoolExecutor(len(prompts)) as clients,
    ):
        try:
            asking = [clients.submit(ask_on, number) for number in range(len(prompts))]
            planner.wait_done(planner.decide(2, 1), 120)
            (first, second) = (
                int(graph.control(each, "describe")["instance"], 16)
                for each in graph.workers("PrefillWorker")
            )
            graph.running.wait_for(lambda: {first, second} <= used, 60)
            planner.wait_done(planner.decide(1, 1), 60)
            assert [each["replica"] for each in graph.workers("PrefillWorker")] == [0]
            used.clear()
            at_that = len(answers)
            graph.running.wait_for(lambda: len(answers) > at_that + 20, 60)
        finally:
            enough.set()
        for each in asking:
            each.result()
    assert used == {first}
    assert [text for status, text in answers if status != 200] == []
    assert graph.running.state()["planner"]["shortfall"] == []
    graph.audit()


@NATS_IN_SOAK
def test_a_killed_prefill_worker_is_back_and_answers(planes: Planes, reference: Reference) -> None:
    graph = planes.graph
    victim = graph.workers("PrefillWorker")[0]
    instance = graph.control(victim, "describe")["instance"]

    def known() -> bool:
        return any(key.endswith(f"/{instance}") for key in planes.etcd.keys("v1/instances/"))

    assert known()
    os.kill(victim["pid"], signal.SIGKILL)
    asked = prompt(10, 60)
    expected = reference.text(asked, ANSWER)
    if len(graph.workers("PrefillWorker")) > 1:
        graph.running.wait_for(lambda: answered(graph, asked, expected))

    def back() -> bool:
        worker = graph.workers("PrefillWorker")[0]
        return worker["pid"] != victim["pid"] and worker["ready"]

    graph.running.wait_for(back, 90)
    assert not known(), "frontends may still ask the dead one"
    seeds, used = itertools.count(100), set()

    def all_answer() -> bool:
        answer = graph.post(
            "/v1/completions",
            prompt=prompt(next(seeds), 64),
            max_tokens=1,
            nvext={"extra_fields": ["worker_id"]},
        )
        if answer.status_code == 200:
            used.add(answer.json()["nvext"]["worker_id"]["prefill_worker_id"])
        return len(used - {int(instance, 16)}) == len(graph.workers("PrefillWorker"))

    graph.running.wait_for(all_answer)
    graph.running.wait_for(lambda: answered(graph, asked, expected))


def waiting(graph: ServedGraph) -> set[str]:
    """The services of which somebody said that it waits for etcd."""
    lines = graph.running.log().splitlines()
    return {line.partition(":")[0] for line in lines if "| --discovery-backend=etcd needs etcd" in line}


@NATS_IN_SOAK
def test_answers_are_right_again_after_the_server_was_away(planes: Planes, reference: Reference) -> None:
    graph, asked = planes.graph, prompt(20, 60)
    expected = reference.text(asked, ANSWER)
    before = set(planes.etcd.keys("v1/instances/"))
    planes.server.kill()
    if planes.fatal:
        # Leases end, and all that are started anew wait for etcd.
        graph.running.wait_for(lambda: {"Frontend", "DecodeWorker", "PrefillWorker"} <= waiting(graph), 90)
        assert not answered(graph, asked, expected)
    else:
        time.sleep(3)
    planes.server.start()
    graph.running.wait_for(lambda: answered(graph, asked, expected), 60)
    assert ("FATAL: Dynamo ended its runtime" in graph.running.log()) == planes.fatal
    graph.running.wait_for(lambda: all(entry["ready"] for entry in graph.running.state()["processes"]), 60)
    if planes.fatal:
        # What ended while etcd was away could not end its lease: of 30 s with Dynamo 1.6, from etcd's start on.
        graph.running.wait_for(lambda: not before & set(planes.etcd.keys("v1/instances/")), 60)
    # Until the frontend has forgotten workers of before, it may still choose one for a prompt that nobody has; what is
    # asked again then finds what the first attempt has prefilled.
    fresh = itertools.count(40)

    def new_ones_are_answered_at_once() -> bool:
        prompts = [prompt(next(fresh), 60) for _ in range(6)]
        answers = [graph.post("/v1/completions", prompt=each, max_tokens=1) for each in prompts]
        return all(
            answer.status_code == 200
            and answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            for answer in answers
        )

    graph.running.wait_for(new_ones_are_answered_at_once, 60)
    is_reused(graph, reference, 30)
    graph.audit()
