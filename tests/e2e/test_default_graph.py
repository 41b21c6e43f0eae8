"""The graph of the README, two replicas of two ranks: cache-aware routing, and a rank that dies."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.observer_router import environment_of, observer
from tests.support.page_commands import blocks
from tests.support.rank_pids import ranks_of
from tests.support.served_graph import ServedGraph
from tests.support.traces import traced

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def graph(start: Callable[..., ServedGraph], ascii_model: Path) -> ServedGraph:
    """Each process as a user's, with nothing imported before it begins."""
    words = (f"--Common.model={ascii_model}", "--Common.dtype=float32")
    return start("graphs:disagg_wavepp", *words, warm=False)


def prefilled_by(answer: dict[str, Any]) -> int:
    return answer["nvext"]["worker_id"]["prefill_worker_id"]


def ask(graph: ServedGraph, prompt: list[int]) -> dict[str, Any]:
    return graph.complete(prompt, max_tokens=2, nvext={"extra_fields": ["worker_id", "timing"]})


def test_a_known_prefix_finds_its_replica_even_after_the_frontend_restarted(graph: ServedGraph) -> None:
    """S62, S63: only consumed KV events can tell a new frontend where a prefix is; decode hears who prefilled it."""
    draw = random.Random(11)
    prefixes = [[draw.randrange(256) for _ in range(400)] for _ in range(40)]
    home = {number: prefilled_by(ask(graph, prefix)) for number, prefix in enumerate(prefixes)}
    assert len(set(home.values())) == 2, "cold prompts should spread over both replicas"
    (frontend,) = graph.workers("Frontend")
    os.kill(frontend["pid"], signal.SIGKILL)

    def back() -> bool:
        (entry,) = graph.workers("Frontend")
        return entry["pid"] != frontend["pid"] and entry["ready"]

    graph.running.wait_for(back, 60)
    # A frontend answers before it has found the workers again,
    graph.running.wait_for(
        lambda: graph.post("/v1/completions", prompt=[1], max_tokens=1).status_code == 200, 30
    )
    # and finds a worker before it has its tree: a prefix that only its home holds tells, once.
    known = set()
    for number in range(10, 40):
        if ask(graph, prefixes[number])["nvext"]["timing"]["kv_hit_rate"] > 0.9:
            known.add(home[number])
        if known == set(home.values()):
            break
        time.sleep(0.2)
    for number in draw.sample(range(10), 10):
        answer = ask(graph, prefixes[number] + [draw.randrange(256) for _ in range(20)])
        assert prefilled_by(answer) == home[number]
        workers = answer["nvext"]["worker_id"]
        assert (workers["prefill_dp_rank"], workers["decode_dp_rank"]) == (0, 0)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 384


@pytest.mark.skipif(shutil.which("jq") is None, reason="the page's commands read state.json with jq")
def test_what_operators_are_told_to_type_shows_what_they_are_told(graph: ServedGraph) -> None:
    """The block of docs/operate.md that asks a running graph."""
    ask(graph, [1, 2, 3])
    [block] = [each for each in blocks("docs/operate.md", "bash") if "/engine/control/audit" in each]
    script = block.replace("/tmp/wavepp", str(graph.running.run_dir)).replace("curl -s", "echo; curl -sf")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for told in (
        "Frontend:0 http://127.0.0.1:",
        "PrefillWorker:1 http://127.0.0.1:",
        "ready=true",
        '"status":"ready"',
        "wavepp_tier_used_blocks{",
        '{"status":"ok","ranks":[{"rank":0,"capacity":',
        '"timings":[',
    ):
        assert told in done.stdout, done.stdout


def wavepp(graph: ServedGraph, *words: str) -> subprocess.CompletedProcess[str]:
    """The command on the command line, of this graph's run."""
    code = "import sys; from wavepp_worker.cli import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", code, *words, "--run-dir", str(graph.running.run_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_a_request_waits_for_is_said_under_the_id_that_its_client_has(graph: ServedGraph) -> None:
    """While a rank of each replica stands still, nothing ends; and of an answer it is said how long it took."""
    chosen = [str(uuid.uuid4()) for _ in range(2)]
    ranks = [ranks_of(worker["pid"])[1] for worker in graph.workers("PrefillWorker")]
    for rank in ranks:
        os.kill(rank, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(2) as pool:
            headers = [{"x-dynamo-request-id": each} for each in chosen]
            body = {"model": graph.running.model, "prompt": [5] * 100, "max_tokens": 2}
            answers = [
                pool.submit(graph.http.post, "/v1/completions", json=body, headers=each) for each in headers
            ]
            graph.running.wait_for(lambda: all(each in wavepp(graph, "why").stdout for each in chosen), 60)
            said = wavepp(graph, "why", f"cmpl-{chosen[0]}")
            assert said.returncode == 0, said.stderr
            assert said.stdout.startswith("PrefillWorker:")
            assert f" {chosen[0]} " in said.stdout
            assert "the vote of rank 1 is missing" in said.stdout
            found, waits = json.loads(wavepp(graph, "why", chosen[1], "--json").stdout)
            assert (found["request_id"], found["ranks"]) == (chosen[1], [1])
            assert (waits["worker"], waits["state"]) == ("DecodeWorker:0", "arriving")
            for rank in ranks:
                os.kill(rank, signal.SIGCONT)
            assert [answer.result(60).status_code for answer in answers] == [200, 200]
    finally:
        for rank in ranks:
            os.kill(rank, signal.SIGCONT)
    answered = answers[0].result().json()["id"]
    assert "is prefilled, which took" in wavepp(graph, "why", answered).stdout
    nobody = wavepp(graph, "why", "nobody")
    assert nobody.returncode == 1
    assert "no worker has request nobody (3 workers asked)" in nobody.stderr


def test_a_frame_of_top_has_every_rank_and_worker(graph: ServedGraph) -> None:
    ask(graph, [7] * 40)
    shown = wavepp(graph, "top", "--once")
    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines() if line.strip()]
    assert [row[0] for row in rows if ":" in row[0]][1:] == [
        "PrefillWorker:0",
        "PrefillWorker:1",
        "DecodeWorker:0",
    ]
    assert [row[0] for row in rows].count("1") == 2, "each replica has two ranks"
    assert "does not answer" not in shown.stdout


def controlled(graph: ServedGraph, name: str, worker: str, **body: Any) -> list[dict[str, Any]]:
    """What ``wavepp control`` prints of the workers so called, all of which could."""
    done = wavepp(graph, "control", name, json.dumps(body), "--worker", worker)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_replica_is_paused_and_its_cache_cleared_under_load_and_no_client_notices(
    graph: ServedGraph, tmp_path: Path
) -> None:
    """S64: a new router knows what each replica has, also of the one that was away, and of the one that forgot all."""
    paused, other = graph.workers("PrefillWorker")
    draw = random.Random(21)
    prefixes = [[draw.randrange(256) for _ in range(320)] for _ in range(6)]
    over = threading.Event()
    codes: Counter[int] = Counter()

    def client(number: int) -> None:
        local = random.Random(number)
        while not over.is_set():
            prompt = [*local.choice(prefixes), *(local.randrange(256) for _ in range(40))]
            salt = local.choice(("one", "two"))
            codes[
                graph.post("/v1/completions", prompt=prompt, max_tokens=2, cache_salt=salt).status_code
            ] += 1

    profile = tmp_path / "profile.json"
    clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in clients:
        thread.start()
    try:
        # Longer than all that follows.
        graph.control(other, "start_profile", path=str(profile), seconds=200)
        for _ in range(2):
            answer = graph.control(paused, "pause", timeout_s=30)
            assert (answer["status"], answer["quiet"], answer["running"]) == ("ok", True, 0)
            before = graph.metric(paused, "wavepp_prompt_tokens_total")
            for worker in (other, paused):
                cleared = graph.control(worker, "clear_kv_blocks")
                assert cleared["status"] == "ok"
                assert len(cleared["ranks"]) == 2
            state = graph.control(other, "dump_state")
            assert (state["status"], state["silent_ranks"], len(state["ranks"])) == ("ok", [], 2)
            assert graph.metric(paused, "wavepp_prompt_tokens_total") == before, "it takes nothing"
            assert graph.control(paused, "resume")["was_paused"]

        def takes_requests() -> bool:
            # What the others ask for is cached at the other replica, where the router sends it.
            ask(graph, [draw.randrange(256) for _ in range(400)])
            return graph.metric(paused, "wavepp_prompt_tokens_total") > before

        graph.running.wait_for(takes_requests, 30)
        assert graph.control(other, "stop_profile")["status"] == "ok"
        (answer,) = controlled(graph, "pause", "PrefillWorker:1", timeout_s=30)
        assert (answer["worker"], answer["quiet"]) == ("PrefillWorker:1", True)
        assert ", paused" in wavepp(graph, "status").stdout
        (answer,) = controlled(graph, "resume", "PrefillWorker:1")
        assert answer["was_paused"]
    finally:
        over.set()
        for thread in clients:
            thread.join(60)
    assert set(codes) == {200}, codes
    assert [worker["restarts"] for worker in graph.workers("PrefillWorker")] == [0, 0]
    computed = [each for each in traced(profile) if each["name"].startswith("forward")]
    assert len({each["pid"] for each in computed}) == 2, "both ranks are in it"
    graph.audit()
    namespace = graph.running.state()["namespace"]
    (frontend,) = graph.workers("Frontend")
    ids = {int(worker["about"]["instance"], 16): worker for worker in graph.workers("PrefillWorker")}
    with observer(environment_of(frontend["pid"]), namespace, 16) as router:
        home = prefilled_by(ask(graph, prefixes[0]))
        graph.running.wait_for(lambda: router.overlap(prefixes[0]).get(home) == (20, 20, 20), 20)
        for name, worker in ids.items():
            # What was between the ranks when the cache was cleared is left on the later one; and on the first, what
            # was to be handed off and had been fetched from the later already.
            books = graph.control(worker, "audit")
            assert 0 < books["on_all_ranks"] <= min(rank["reusable"] for rank in books["ranks"])
            graph.running.wait_for(
                lambda name=name, books=books: len(router.blocks()[name]) == books["on_all_ranks"], 20
            )
        cleared = controlled(graph, "clear_kv_blocks", "PrefillWorker")
        assert {each["worker"] for each in cleared} == {"PrefillWorker:0", "PrefillWorker:1"}
        graph.running.wait_for(lambda: not router.blocks(), 20)


def at_once(graph: ServedGraph, prompts: list[list[int]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: ask(graph, prompt), prompts))


def test_one_replica_answers_a_burst_of_one_cold_prefix_and_both_a_burst_of_many(graph: ServedGraph) -> None:
    """Before the first KV event of a prefix, only the router's own prediction says where it is being computed."""
    draw = random.Random(7)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(256) for _ in range(count)]

    def routed() -> int:
        return graph.running.log().count("worker_type=prefill")

    for _ in range(3):
        prefix, before = tokens(8000), routed()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(ask, graph, prefix + tokens(16))
            graph.running.wait_for(lambda before=before: routed() > before)
            others = at_once(graph, [prefix + tokens(16) for _ in range(5)])
            answers = [first.result(60), *others]
        assert len({prefilled_by(answer) for answer in answers}) == 1
        reused = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in others]
        assert min(reused) >= 7984, "a prefix in the making was computed again"
    spread = Counter(prefilled_by(answer) for answer in at_once(graph, [tokens(400) for _ in range(12)]))
    # How evenly is the router's affair, and depends on which of them are answered before others come.
    assert len(spread) == 2
    assert min(spread.values()) >= 2


def test_no_secret_of_a_hand_off_is_logged(graph: ServedGraph) -> None:
    """Dynamo would log what a prefill worker registers: the key of its rooms before its host."""
    graph.complete("Hello there", max_tokens=2)
    log = graph.running.log()
    assert "PrefillWorker:1 is up" in log
    assert not re.search(r"[0-9a-f]{64}@", log)


def test_a_killed_rank_costs_one_replica_for_a_while(graph: ServedGraph) -> None:
    """Promise 18, S54: the other replica answers, also what was under way; the launcher brings the replica back."""
    before = {worker["pid"] for worker in graph.workers("PrefillWorker")}
    victim = graph.workers("PrefillWorker")[0]
    outcomes: list[tuple[int, str]] = []
    killed = threading.Event()

    def client(number: int) -> None:
        draw = random.Random(number)
        while not killed.is_set():
            prompt = [draw.randrange(256) for _ in range(7000)]
            answer = graph.post("/v1/completions", prompt=prompt, max_tokens=2)
            outcomes.append((answer.status_code, answer.text))

    clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in clients:
        thread.start()
    time.sleep(1.5)
    victims = ranks_of(victim["pid"])
    assert len(victims) == 2
    log_before = len(graph.running.log())
    os.kill(victims[0], signal.SIGKILL)
    killed.set()
    for thread in clients:
        thread.join(30)
        assert not thread.is_alive(), "a request in flight hangs after its rank was killed"
    failed = [(code, text) for code, text in outcomes if code != 200]
    # A second request may meet the dead replica again, before the frontend has heard of its death.
    assert all(code == 503 and "rank 0 was ended by SIGKILL" in text for code, text in failed), failed
    assert len(failed) <= 1
    # Dynamo's own frontend had no answer: 500 on version 1.4, 503 on 1.6.
    failures = re.search(r"status=(error|50[03])", graph.running.log()[log_before:])
    assert failures, "no request was in flight on the killed rank"
    deadline = time.monotonic() + 15
    served = 0
    while served < 10:
        assert time.monotonic() < deadline, (
            f"the other replica does not serve:\n{graph.running.log()[-3000:]}"
        )
        draw = random.Random(served)
        answer = graph.post("/v1/completions", prompt=[draw.randrange(256) for _ in range(50)], max_tokens=2)
        served = served + 1 if answer.status_code == 200 else 0

    def restarted() -> bool:
        workers = graph.workers("PrefillWorker")
        return {worker["pid"] for worker in workers} != before and all(worker["ready"] for worker in workers)

    graph.running.wait_for(restarted, 90)
    assert "rank 0 was ended by SIGKILL" in graph.running.log()
    used = set()
    deadline = time.monotonic() + 30
    while len(used) < 2 and time.monotonic() < deadline:
        used.add(prefilled_by(ask(graph, [random.randrange(256) for _ in range(64)])))
    assert len(used) == 2, "the restarted replica gets no requests"
    graph.audit()


def test_a_dead_worker_is_unhealthy(graph: ServedGraph) -> None:
    """S53: health is not 200 while the engine is dead."""
    graph.running.wait_for(lambda: all(worker["ready"] for worker in graph.workers("PrefillWorker")), 90)
    victim = graph.workers("PrefillWorker")[0]
    url = f"http://127.0.0.1:{victim['port']}/health"
    assert httpx.get(url, timeout=5).status_code == 200
    os.kill(ranks_of(victim["pid"])[1], signal.SIGKILL)

    def unhealthy() -> bool:
        try:
            return httpx.get(url, timeout=1).status_code != 200
        except httpx.HTTPError:
            return True

    graph.running.wait_for(unhealthy, 5)
