"""Graphs of models with layers of other kinds, of KV in FP8, and of several replicas with adapters."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.liveness.stop_times import GRACE_VARIABLE

from tests.e2e.conftest import served
from tests.support.ascii_model import make_ascii_model
from tests.support.lora_adapters import make_adapter, merge
from tests.support.rank_pids import ranks_of
from tests.support.reference import Reference
from tests.support.served_graph import ServedGraph

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

# A prompt of whole blocks leaves its snapshot at its end, where it cannot itself be resumed.
LENGTHS = (1, 2, 15, 16, 17, 33, 100, 333, 1025, 1500, 2500)
ANSWER = 12


def serving(
    model: Path, *words: str, replicas: int = 1, env: dict[str, str] | None = None
) -> AbstractContextManager[ServedGraph]:
    """A graph in float32, stopped at the end: one at a time needs little memory."""
    return served(
        "graphs:disagg_wavepp",
        f"--Common.model={model}",
        "--Common.dtype=float32",
        f"--PrefillWorker.ServiceArgs.workers={replicas}",
        *words,
        env=env,
    )


def prompts(seed: int, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256) for _ in range(length)] for length in lengths]


def text(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["text"]


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def at_once(graph: ServedGraph, asked: Sequence[list[int]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda prompt: graph.complete(prompt, max_tokens=ANSWER), asked))


def kill_a_rank(graph: ServedGraph) -> None:
    """The last one of a replica; returns when the replica is back."""
    [worker] = graph.workers("PrefillWorker")
    os.kill(ranks_of(worker["pid"])[-1], signal.SIGKILL)

    def back() -> bool:
        [entry] = graph.workers("PrefillWorker")
        return bool(entry["restarts"] == worker["restarts"] + 1 and entry["ready"])

    graph.running.wait_for(back, 120)
    graph.running.wait_for(
        lambda: graph.post("/v1/completions", prompt=[1], max_tokens=1).status_code == 200, 60
    )


@pytest.mark.parametrize("family", ["qwen3_next", "kimi_linear", "gemma3_text"])
def test_greedy_text_equals_generate_cold_warm_at_once_and_after_a_rank_died(
    family: str, tmp_path: Path
) -> None:
    model = make_ascii_model(tmp_path / family, family)
    reference, asked = Reference(model), prompts(5)
    expected = [reference.text(prompt, ANSWER) for prompt in asked]
    longer = [[*prompt, *prompt[::-1]][: len(prompt) + 50] for prompt in asked[4:]]
    with serving(
        model, "--PrefillWorker.max_num_batched_tokens=200", "--PrefillWorker.host_kv_tokens=4096"
    ) as graph:
        for reused in (False, True):
            for prompt, answer in zip(asked, expected, strict=True):
                said = graph.complete(prompt, max_tokens=ANSWER)
                assert text(said) == answer, f"{len(prompt)} tokens, {reused=}"
                assert cached(said) > len(prompt) - 18 if reused else cached(said) == 0
        for prompt, said in zip(longer, at_once(graph, longer), strict=True):
            assert text(said) == reference.text(prompt, ANSWER), f"{len(prompt)} tokens, at once"
            assert cached(said) > len(prompt) - 50 - 18
        graph.audit()
        kill_a_rank(graph)
        assert [text(said) for said in at_once(graph, asked)] == expected
        graph.audit()


def test_kv_in_fp8_answers_alike_however_much_of_it_is_reused(
    ascii_model: Path, reference: Reference
) -> None:
    asked = prompts(9)
    longer = [[*prompt, *range(40)] for prompt in asked[4:]]
    with serving(ascii_model, "--Common.kv_dtype=fp8") as graph:
        [prefill], [decode] = graph.workers("PrefillWorker"), graph.workers("DecodeWorker")
        cold = [graph.complete(prompt, max_tokens=ANSWER) for prompt in asked]
        # Each head's keys and values of a token: 16 numbers and a scale.
        received = graph.metric(decode, "wavepp_decode_kv_received_bytes_total")
        assert received == sum(LENGTHS) * 6 * 2 * 2 * (16 + 4)
        warm = at_once(graph, asked)
        assert [text(said) for said in warm] == [text(said) for said in cold]
        assert all(cached(said) > len(prompt) - 18 for prompt, said in zip(asked, warm, strict=True))
        reusing = at_once(graph, longer)
        assert all(cached(said) > len(prompt) - 40 - 18 for prompt, said in zip(longer, reusing, strict=True))
        graph.audit()
        assert graph.control(prefill, "clear_kv_blocks")["status"] == "ok"
        anew = [graph.complete(prompt, max_tokens=ANSWER) for prompt in longer]
        assert all(cached(said) == 0 for said in anew)
        assert [text(said) for said in reusing] == [text(said) for said in anew]
    first = [text(said)[0] == reference.text(prompt, 1) for prompt, said in zip(asked, cold, strict=True)]
    assert sum(first) > len(first) / 2


def test_a_router_knows_which_replica_has_a_prefix_of_which_adapter(
    ascii_model: Path, reference: Reference, tmp_path: Path
) -> None:
    paths = {
        name: make_adapter(tmp_path / name, ascii_model, seed=seed)
        for seed, name in enumerate(("poet", "coder"))
    }
    models = {ascii_model.name: reference} | {
        name: Reference(merge(tmp_path / f"merged {name}", ascii_model, path)) for name, path in paths.items()
    }
    cases = [(name, prompt) for name in models for prompt in prompts(31, [400] * 6)]
    expected = [models[name].text(prompt, ANSWER) for name, prompt in cases]
    longer = [models[name].text([*prompt, *range(20)], ANSWER) for name, prompt in cases]
    with serving(
        ascii_model,
        "--Common.lora_modules=" + ",".join(f"{name}={path}" for name, path in paths.items()),
        # Else the router counts what it foretells as heard.
        "--Frontend.router_predicted_ttl_secs=null",
        replicas=2,
    ) as graph:

        def listed() -> set[str]:
            return {each["id"] for each in graph.http.get("/v1/models").json()["data"]}

        def ask(name: str, prompt: list[int]) -> dict[str, Any]:
            wanted = {"extra_fields": ["worker_id", "timing"]}
            return graph.complete(prompt, max_tokens=ANSWER, model=name, nvext=wanted)

        def by(said: dict[str, Any]) -> int:
            return said["nvext"]["worker_id"]["prefill_worker_id"]

        graph.running.wait_for(lambda: listed() == models.keys())
        homes = []
        for (name, prompt), answer in zip(cases, expected, strict=True):
            said = ask(name, prompt)
            assert (text(said), cached(said)) == (answer, 0), name
            homes.append(by(said))
        assert len(set(homes)) == 2
        for (name, prompt), home, answer in zip(cases, homes, longer, strict=True):
            said = ask(name, [*prompt, *range(20)])
            assert text(said) == answer, name
            assert (by(said), cached(said)) == (home, 400), name
            assert said["nvext"]["timing"]["kv_hit_rate"] > 0.9
        graph.audit()


def test_a_frontend_that_is_restarted_has_adapters_again_within_a_minute(
    ascii_model: Path, tmp_path: Path
) -> None:
    adapter = make_adapter(tmp_path / "poet", ascii_model)
    merged = Reference(merge(tmp_path / "merged", ascii_model, adapter))
    [prompt] = prompts(37, [100])
    with serving(ascii_model, f"--Common.lora_modules=poet={adapter}") as graph:

        def answers() -> bool:
            asked = graph.post("/v1/completions", prompt=prompt, max_tokens=ANSWER, model="poet")
            return asked.status_code == 200 and text(asked.json()) == merged.text(prompt, ANSWER)

        graph.running.wait_for(answers, 60)
        [frontend] = graph.running.processes("Frontend")
        os.kill(frontend["pid"], signal.SIGKILL)
        graph.running.wait_for(lambda: graph.running.processes("Frontend")[0]["pid"] != frontend["pid"], 60)
        graph.running.wait_for(lambda: graph.running.processes("Frontend")[0]["ready"], 60)
        graph.running.wait_for(answers, 60)
        graph.audit()


def test_replicas_that_are_restarted_one_by_one_go_on_serving_adapters_and_the_model(
    ascii_model: Path, tmp_path: Path
) -> None:
    """The next one is told to stop as soon as the one before says that it is well again."""
    adapter = make_adapter(tmp_path / "poet", ascii_model)
    [prompt] = prompts(41, [100])
    with serving(ascii_model, f"--Common.lora_modules=poet={adapter}", replicas=2) as graph:

        def serves(model: str) -> bool:
            asked = graph.post("/v1/completions", prompt=prompt, max_tokens=2, model=model)
            return asked.status_code == 200

        assert serves("poet"), "a graph is ready when its adapters are"
        assert len(graph.running.processes("PrefillWorker")) == 2
        for number, before in enumerate(graph.running.processes("PrefillWorker")):
            os.kill(before["pid"], signal.SIGTERM)

            def is_back(number: int = number, pid: int = before["pid"]) -> bool:
                now = graph.running.processes("PrefillWorker")[number]
                return bool(now["pid"] != pid and now["ready"])

            graph.running.wait_for(is_back, 60)
            assert serves("poet"), "the other one has been there all the time"
            assert serves(graph.running.model)
        for model in ("poet", graph.running.model):
            graph.running.wait_for(lambda model=model: serves(model), 10)
            assert all(serves(model) for _ in range(5))
        graph.audit()


def test_adapters_are_served_again_each_time_that_every_worker_was_killed(
    ascii_model: Path, tmp_path: Path
) -> None:
    """An adapter that a frontend could not add at once is wrong for good if all workers die before it tries again."""
    adapter = make_adapter(tmp_path / "poet", ascii_model)
    [prompt] = prompts(43, [100])
    services = ("PrefillWorker", "DecodeWorker")
    words = (f"--Common.lora_modules=poet={adapter}", "--DecodeWorker.ServiceArgs.workers=2")
    with serving(ascii_model, *words, replicas=2) as graph:

        def workers() -> list[dict[str, Any]]:
            return [each for service in services for each in graph.running.processes(service)]

        for _ in range(3):
            before = workers()
            assert len(before) == 4
            for each in before:
                os.kill(each["pid"], signal.SIGKILL)

            def are_back(old: tuple[int, ...] = tuple(each["pid"] for each in before)) -> bool:
                return all(each["ready"] and each["pid"] not in old for each in workers())

            graph.running.wait_for(are_back, 60)
            for model in ("poet", graph.running.model):
                graph.running.wait_for(
                    lambda model=model: (
                        graph.post("/v1/completions", prompt=prompt, max_tokens=2, model=model).status_code
                        == 200
                    ),
                    10,
                )
        assert "Error adding model from discovery" not in graph.running.log()
        graph.audit()


def test_adapters_are_served_by_a_replica_that_came_while_another_left(
    ascii_model: Path, tmp_path: Path
) -> None:
    """Its adapters are in discovery until its last requests have ended, in a grace period, and it is not."""
    adapter = make_adapter(tmp_path / "poet", ascii_model)
    [prompt] = prompts(47, [100])
    words, env = f"--Common.lora_modules=poet={adapter}", {GRACE_VARIABLE: "5"}
    with serving(ascii_model, words, replicas=2, env=env) as graph:
        before = graph.running.processes("PrefillWorker")
        for each, order in zip(before, (signal.SIGKILL, signal.SIGTERM), strict=True):
            os.kill(each["pid"], order)

        def are_back() -> bool:
            now = graph.running.processes("PrefillWorker")
            return all(
                each["ready"] and each["pid"] != old["pid"] for each, old in zip(now, before, strict=True)
            )

        graph.running.wait_for(are_back, 60)
        for _ in range(5):
            for model in ("poet", graph.running.model):
                asked = graph.post("/v1/completions", prompt=prompt, max_tokens=2, model=model)
                assert asked.status_code == 200, asked.text
        graph.audit()
