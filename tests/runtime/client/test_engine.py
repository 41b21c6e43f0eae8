"""The prefill engine with real rank processes: right answers, bounded waits, clean books."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from wavepp_worker import EngineConfig, PrefillEngine, PrefillResult
from wavepp_worker.errors import (
    ConfigError,
    EngineDead,
    InvalidRequest,
    RequestAborted,
    RequestFailed,
    RequestTimeout,
)
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.runtime.client.rank_processes import RankProcesses
from wavepp_worker.runtime.protocol.rank_config import IGNORED_SIGNALS
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.tiers.disk_format import PAGE_BYTES, record_bytes

from tests.support.prompts import PromptMaker
from tests.support.reference import Reference, assert_right
from tests.support.waiting import wait_until


def submit(engine: PrefillEngine, name: str, prompt: list[int]) -> Future[PrefillResult]:
    return engine.submit(PrefillRequest.of(name, prompt))


def running(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture(
    scope="module",
    params=[
        {"pp": 1, "max_num_batched_tokens": 33, "block_size": 5, "host_kv_tokens": 300},
        {"pp": 2, "max_num_batched_tokens": 16, "block_size": 16, "admission": "lockstep"},
        {
            "pp": 3,
            "partition": (1, 3, 2),
            "max_num_batched_tokens": 7,
            "block_size": 3,
            "kv_tokens": (1200, 1000, 1500),
            "host_kv_tokens": (0, 400, 900),
            "planner": "throttle",
        },
        {"pp": 2, "max_num_batched_tokens": 512, "block_size": 1, "planner": "mpu-paper"},
        {
            "pp": 4,
            "max_num_batched_tokens": 64,
            "block_size": 8,
            "ownership": "none",
            "planner": "mpu",
            "wave_cost": (0.002, 0.0001, 0.0),
            "activations": "gloo",
        },
    ],
    ids=lambda values: "-".join(
        f"{key}{values[key]}"
        for key in ("pp", "max_num_batched_tokens", "block_size", "admission", "ownership")
        if key in values
    ),
)
def engine(request: pytest.FixtureRequest, tiny_llama: Path) -> Iterator[PrefillEngine]:
    values = {"kv_tokens": 1000, "max_model_len": 600, **request.param}
    with PrefillEngine(EngineConfig(model=tiny_llama, dtype="float32", **values)) as running:
        yield running


def test_first_tokens_equal_a_plain_forward(engine: PrefillEngine, reference: Reference) -> None:
    """Promise 13: cold, with a reused prefix, one by one and all at once."""
    maker = PromptMaker(seed=1)
    for length in (1, 2, 17, 300):
        prompt = maker.tokens(length)
        cold = engine.prefill(prompt, top_logprobs=5)
        warm = engine.prefill(prompt, top_logprobs=5)
        assert cold.reused_tokens == 0
        block = engine.config.block_size
        assert warm.reused_tokens == (length - 1) // block * block
        assert_right(reference, prompt, cold)
        assert_right(reference, prompt, warm)
    prompts = [maker.prompt() for _ in range(16)]
    futures = [submit(engine, f"p{index}", prompt) for index, prompt in enumerate(prompts)]
    for prompt, future in zip(prompts, futures, strict=True):
        assert_right(reference, prompt, future.result(60))
    engine.audit()


def test_what_a_prompt_could_reuse_is_known_before_it_is_submitted(engine: PrefillEngine) -> None:
    block = engine.config.block_size
    prompt = [*range(200, 200 + 5 * block), 1, 2]
    request = PrefillRequest.of("r", prompt, salt="known before")
    assert engine.reusable_tokens(request.tokens, request.salt) == 0
    engine.submit(request).result()
    engine.audit()
    assert engine.reusable_tokens(request.tokens, request.salt) == (len(prompt) - 1) // block * block
    assert engine.reusable_tokens(request.tokens, "another") == 0
    shorter = PrefillRequest.of("r", prompt[: 2 * block])
    # Its last token has to be computed.
    assert engine.reusable_tokens(shorter.tokens, request.salt) == (2 * block - 1) // block * block


def test_a_storm_of_aborts_leaves_survivors_right_and_books_clean(
    engine: PrefillEngine, reference: Reference
) -> None:
    """S01, S30, S33, promise 10: half are cancelled at random instants, 90 % share a prefix."""
    seed = random.randrange(2**32)
    maker = PromptMaker(seed)
    jobs = []
    for index in range(120):
        prompt = maker.prompt(shared=0.9)
        name = f"storm-{index}"
        jobs.append((prompt, submit(engine, name, prompt)))
        if maker.random.random() < 0.5:
            delay = maker.random.choice((0.0, 0.002, 0.02, 0.1))
            threading.Timer(delay, engine.abort, (name,)).start()
            threading.Timer(delay, engine.abort, (name,)).start()
        time.sleep(maker.random.choice((0.0, 0.0, 0.003)))
    finished = 0
    for prompt, future in jobs:
        try:
            result = future.result(120)
        except RequestAborted:
            continue
        finished += 1
        if finished % 4 == 0:
            assert_right(reference, prompt, result)
    assert finished >= 30, f"seed {seed}"
    report = engine.audit()
    assert len(report["ranks"]) == engine.config.pp


def test_hundreds_of_random_good_and_bad_requests_leak_nothing(engine: PrefillEngine) -> None:
    seed = random.randrange(2**32)
    maker = PromptMaker(seed)
    good: list[Future[PrefillResult]] = []
    refused = bad = 0
    for index in range(400):
        prompt = maker.prompt(shared=0.8, longest=8)
        kind = maker.random.random()
        sampling = SamplingParams()
        name = f"r{index}"
        if kind < 0.1:
            prompt = []
        elif kind < 0.2:
            prompt = [*prompt, 300 + maker.random.randrange(10)]
        elif kind < 0.3:
            prompt = maker.tokens(601)
        elif kind < 0.4:
            sampling = SamplingParams(top_p=1.5)
        try:
            request = PrefillRequest.of(name, prompt, sampling=sampling)
            good.append(engine.submit(request))
        except InvalidRequest:
            refused += 1
        assert len(good) + refused == index + 1
        bad += kind < 0.4
        assert refused == bad, f"seed {seed}: request {index} of kind {kind:.2f}"
    done, not_done = wait(good, timeout=120)
    assert not not_done, f"seed {seed}"
    assert all(future.exception() is None for future in done)
    assert refused > 120
    engine.audit()


def test_bad_requests_are_refused_with_a_sentence_and_hurt_nobody(engine: PrefillEngine) -> None:
    for token_ids, complaint in (
        ([], "the prompt is empty"),
        ([1] * 601, "has 601 tokens, this worker accepts at most 600"),
        ([5, 100_000], "token id 100000 is outside the vocabulary"),
        ([-1], "token id -1"),
        ([1.5, "x"], "integers"),
    ):
        with pytest.raises(InvalidRequest, match=complaint):
            engine.prefill(token_ids)
    with pytest.raises(InvalidRequest, match="temperature"):
        engine.prefill([1], sampling=SamplingParams(temperature=-1.0))
    with pytest.raises(InvalidRequest, match="salt has 1025 bytes"):
        engine.prefill([1], salt="s" * 1025)
    engine.audit()


def test_a_hand_off_is_refused_where_nothing_is_handed_off(engine: PrefillEngine) -> None:
    """Nobody could settle it: its blocks would be held, and its id in use, for ever."""
    with pytest.raises(InvalidRequest, match=r"request kept asks for a hand-off.*handoff=none"):
        engine.submit(PrefillRequest.of("kept", [1, 2, 3], handoff=True)).result(60)
    engine.audit(10)


def test_s38_a_replayed_request_is_refused_until_all_ranks_have_let_go_of_the_first(
    engine: PrefillEngine, reference: Reference
) -> None:
    maker = PromptMaker(seed=38)
    prompt, other = maker.tokens(150), maker.tokens(20)
    first = submit(engine, "same", prompt)
    with pytest.raises(InvalidRequest, match="request id same is in use"):
        submit(engine, "same", other)
    assert_right(reference, prompt, first.result(60))
    for round_trip in range(5):
        aborted = submit(engine, "same", maker.tokens(300))
        time.sleep(0.01 * round_trip)
        engine.abort("same")
        again: Future[PrefillResult] | None = None
        deadline = time.monotonic() + 30
        while again is None:
            assert time.monotonic() < deadline, "the id of an aborted request stays in use"
            with contextlib.suppress(InvalidRequest):
                again = submit(engine, "same", other)
        assert aborted.done()
        assert_right(reference, other, again.result(60))
    engine.audit()


def test_a_burst_of_one_cold_prefix_reads_what_is_being_computed(
    engine: PrefillEngine, reference: Reference
) -> None:
    """A tree of prefixes: a system prompt, documents, questions; whoever began it gives up in some rounds.

    The blocks hold other prompts' KV before: who reads one that is not written yet gets another answer.
    """
    maker = PromptMaker(seed=13)
    for turn in range(4):
        for other in [submit(engine, f"other-{turn}-{i}", maker.tokens(290)) for i in range(4)]:
            other.result(60)
        system = maker.tokens(150)
        documents = [system + maker.tokens(120) for _ in range(2)]
        prompts = [
            system + maker.tokens(9),
            *(document + maker.tokens(11) for document in documents for _ in range(2)),
        ]
        futures = [submit(engine, f"burst-{turn}-{i}", prompt) for i, prompt in enumerate(prompts)]
        given_up = () if turn == 0 else (0, 1)[: 1 + turn % 2]
        time.sleep(0.004 * turn)
        for index in given_up:
            engine.abort(f"burst-{turn}-{index}")
        for index, (prompt, future) in enumerate(zip(prompts, futures, strict=True)):
            if index in given_up:
                with contextlib.suppress(RequestAborted):
                    future.result(60)
                continue
            assert_right(reference, prompt, future.result(60))
            config = engine.config
            if turn == 0 and index and (config.admission, config.ownership) == ("wave", "lease"):
                least = 150 if index in (1, 3) else 270
                assert future.result().reused_tokens >= least // config.block_size * config.block_size
    engine.audit()


def test_higher_priorities_are_admitted_first_and_among_equals_who_came_first(tiny_llama: Path) -> None:
    config = EngineConfig(
        model=tiny_llama, dtype="float32", pp=2, kv_tokens=512, max_model_len=512, max_num_batched_tokens=64
    )
    admitted: list[str] = []
    priorities = {"busy": 0, "a": 0, "b": 0, "c": 5, "d": -1, "e": 5, "f": 2**40}
    with PrefillEngine(config) as engine:
        maker, futures = PromptMaker(seed=5), []
        for name, priority in priorities.items():
            # Two of them do not fit, so the others wait.
            request = msgspec.structs.replace(PrefillRequest.of(name, maker.tokens(480)), priority=priority)
            futures.append(engine.submit(request, lambda name=name: admitted.append(name)))
            # Or somebody else may be the first that is looked at.
            wait_until(lambda: bool(admitted))
        for future in futures:
            future.result(60)
        engine.audit()
    assert admitted == ["busy", "f", "c", "e", "a", "b", "d"]


def test_a_banned_first_token_is_not_chosen(engine: PrefillEngine, reference: Reference) -> None:
    prompt = [4, 5, 6, 7]
    best, second = reference.next_logprobs(prompt).topk(2).indices.tolist()
    request = PrefillRequest.of("banned", prompt, banned=(best,))
    assert engine.submit(request).result(60).first_token == second


def test_admission_is_told_once_and_before_the_answer(engine: PrefillEngine) -> None:
    """Whoever waits for room has not been told yet: nobody should hold blocks elsewhere on its behalf."""
    order: list[str] = []
    maker = PromptMaker(seed=9)
    futures = []
    for index in range(3):
        request = PrefillRequest.of(f"told-{index}", maker.tokens(590))
        futures.append(engine.submit(request, lambda index=index: order.append(f"admitted {index}")))
        futures[-1].add_done_callback(lambda _, index=index: order.append(f"done {index}"))
    wait(futures, timeout=120)
    assert sorted(order) == sorted(f"{what} {index}" for what in ("admitted", "done") for index in range(3))
    assert all(order.index(f"admitted {index}") < order.index(f"done {index}") for index in range(3))
    engine.audit()


def test_two_requests_that_fit_only_one_after_the_other_both_finish(
    engine: PrefillEngine, reference: Reference
) -> None:
    """S18: each fits the pool, together they do not; and S20: nobody behind them waits for ever."""
    maker = PromptMaker(seed=3)
    prompts = [maker.tokens(600), maker.tokens(590), maker.tokens(10)]
    futures = [submit(engine, f"big-{index}", prompt) for index, prompt in enumerate(prompts)]
    for prompt, future in zip(prompts, futures, strict=True):
        assert future.result(120).first_token == int(reference.next_logprobs(prompt).argmax())
    engine.audit()


def test_every_limit_at_one_still_works(tiny_llama: Path, reference: Reference) -> None:
    """S27."""
    config = EngineConfig(
        model=tiny_llama,
        dtype="float32",
        pp=3,
        max_num_batched_tokens=1,
        block_size=1,
        kv_tokens=9,
        max_model_len=9,
        max_num_seqs=1,
    )
    maker = PromptMaker(seed=4)
    with PrefillEngine(config) as engine:
        prompts = [maker.tokens(9), maker.tokens(5), maker.tokens(1)]
        futures = [submit(engine, f"one-{index}", prompt) for index, prompt in enumerate(prompts)]
        for prompt, future in zip(prompts, futures, strict=True):
            assert future.result(60).first_token == int(reference.next_logprobs(prompt).argmax())
        engine.audit()


def test_what_the_device_evicts_is_reused_from_host_memory_and_after_a_restart_from_disk(
    tiny_llama: Path, reference: Reference, tmp_path: Path
) -> None:
    """S45: every rank offloads on its own, to a tier of its own, and reuse still needs all of them.

    Damaged bytes cost a computation.
    """
    config = EngineConfig(
        model=tiny_llama,
        dtype="float32",
        pp=2,
        max_num_batched_tokens=64,
        block_size=8,
        kv_tokens=(320, 400),
        max_model_len=320,
        host_kv_tokens=(400, 200),
        disk_kv_tokens=1600,
        disk_path=tmp_path / "kv",
    )
    maker = PromptMaker(seed=6)
    prompts = [maker.tokens(300) for _ in range(3)]
    with PrefillEngine(config) as engine:
        for again in (False, True):
            for prompt in prompts:
                result = engine.prefill(prompt, top_logprobs=5)
                assert result.reused_tokens == (296 if again else 0)
                assert_right(reference, prompt, result)
        engine.audit()
    with PrefillEngine(config) as engine:
        for prompt in prompts:
            result = engine.prefill(prompt, top_logprobs=5)
            assert result.reused_tokens == 296
            assert_right(reference, prompt, result)
        engine.audit()
    damage(tmp_path / "kv" / "rank1.blocks", slots=1600 // 8)
    with PrefillEngine(config) as engine:
        reused = []
        for prompt in prompts * 2:
            result = engine.prefill(prompt, top_logprobs=5)
            reused.append(result.reused_tokens)
            assert_right(reference, prompt, result)
        assert 0 < min(reused[:3]) < 296, "the blocks before the damaged one are good"
        assert reused[3:] == [296] * 3
        cleared = engine.clear()["ranks"]
        assert [(each["rank"], each["held"]) for each in cleared] == [(0, 0), (1, 0)]
        assert all(each["device"] and each["host"] and each["disk"] for each in cleared)
        assert [engine.prefill(prompt).reused_tokens for prompt in prompts * 2] == [0] * 3 + [296] * 3
        engine.audit()
        engine.clear()
    with PrefillEngine(config) as engine:
        assert engine.prefill(prompts[0]).reused_tokens == 0, "it is not found on disk either"


def damage(path: Path, slots: int) -> None:
    """Overwrite the bytes of one block in the middle of a disk tier of rank 1, as a failing disk might."""
    header = -(-(PAGE_BYTES + record_bytes(0) * slots) // PAGE_BYTES) * PAGE_BYTES
    size = (path.stat().st_size - header) // slots
    with path.open("r+b") as file:
        file.seek(header + 20 * size)
        file.write(bytes(size))


def test_a_request_that_takes_too_long_fails_and_frees_its_blocks(tiny_llama: Path) -> None:
    config = EngineConfig(
        model=tiny_llama,
        pp=2,
        max_num_batched_tokens=1,
        block_size=1,
        kv_tokens=8192,
        dtype="float32",
        request_timeout=0.5,
    )
    with PrefillEngine(config) as engine:
        with pytest.raises(RequestTimeout, match="request_timeout=0"):
            engine.prefill([7] * 8000)
        engine.audit()


@pytest.mark.parametrize("activations", ["socket", "gloo"])
def test_s51_stopping_with_traffic_on_every_edge_ends_all_and_can_be_repeated(
    tiny_llama: Path, activations: Literal["socket", "gloo"]
) -> None:
    config = EngineConfig(
        model=tiny_llama,
        pp=3,
        max_num_batched_tokens=8,
        block_size=4,
        kv_tokens=2000,
        max_model_len=600,
        dtype="float32",
        activations=activations,
    )
    maker = PromptMaker(seed=51)
    with PrefillEngine(config) as engine:
        pids = engine.rank_pids
        futures = [submit(engine, f"stopped-{index}", maker.tokens(300)) for index in range(30)]
        futures[0].result(60)
        closers = [threading.Thread(target=engine.close) for _ in range(2)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(20)
            assert not closer.is_alive()
        engine.close()
    assert not any(running(pid) for pid in pids)
    assert not wait(futures, timeout=5).not_done
    ended = [future.exception() for future in futures]
    assert any(ended), "nothing was in flight"
    assert all(error is None or isinstance(error, EngineDead) for error in ended)


@pytest.mark.parametrize("activations", ["socket", "gloo"])
def test_a_killed_rank_fails_what_is_in_flight_and_leaves_nothing_running(
    tiny_llama: Path, activations: Literal["socket", "gloo"]
) -> None:
    """S54, promise 18."""
    reasons: list[str] = []
    config = EngineConfig(
        model=tiny_llama,
        pp=3,
        max_num_batched_tokens=1,
        block_size=1,
        kv_tokens=8192,
        dtype="float32",
        activations=activations,
    )
    engine = PrefillEngine(config, on_death=reasons.append)
    engine.start()
    try:
        pids = engine.rank_pids
        future = submit(engine, "doomed", [7] * 8000)
        time.sleep(0.2)
        os.kill(pids[1], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EngineDead, match="rank 1 was ended by SIGKILL"):
            future.result(5)
        assert time.monotonic() - killed < 5
        deadline = time.monotonic() + 5
        while any(running(pid) for pid in pids):
            assert time.monotonic() < deadline, "the other ranks outlive the one that died"
            time.sleep(0.01)
        assert len(reasons) == 1
        assert reasons[0].startswith("rank 1 was ended by SIGKILL (by somebody, or by the kernel")
        assert not engine.alive
        with pytest.raises(EngineDead):
            submit(engine, "late", [1])
        with pytest.raises(EngineDead):
            engine.audit()
    finally:
        engine.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"pp": 7}, "pp"),
        ({"pp": 2, "partition": (3, 4)}, "partition"),
        ({"pp": 2, "partition": (6,)}, "partition"),
        ({"max_model_len": 9000}, "max_model_len"),
        ({"kv_tokens": 512}, "kv_tokens"),
        ({"pp": 2, "kv_tokens": (9000, 100)}, "kv_tokens"),
        ({"pp": 2, "kv_tokens": (9000,)}, "kv_tokens"),
        ({"kv_tokens": 8, "block_size": 16}, "kv_tokens"),
        ({"model": Path("/nowhere")}, "model"),
        ({"device": "cuda:99", "max_model_len": 64}, "device"),
    ],
)
def test_a_bad_configuration_fails_at_start_naming_the_key(
    tiny_llama: Path, values: dict[str, object], key: str
) -> None:
    """S17."""
    started: list[PrefillEngine] = []

    def start() -> None:
        started.append(PrefillEngine(EngineConfig.model_validate({"model": tiny_llama, **values})))
        started[0].start()

    with pytest.raises(ConfigError, match=key):
        start()
    assert not any(running(pid) for engine in started for pid in engine.rank_pids)


@pytest.fixture(scope="module")
def poisoned(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tiny_llama``, whose logits are no numbers after a prompt with token 5 in it."""
    directory = tmp_path_factory.mktemp("poisoned") / "llama"
    shutil.copytree(tiny_llama, directory)
    weights = load_file(directory / "model.safetensors")
    weights["model.embed_tokens.weight"][5] = torch.nan
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.mark.parametrize("handoff", ["none", "socket"])
def test_no_request_kills_a_rank(poisoned: Path, handoff: Literal["none", "socket"]) -> None:
    """Each fails alone, in a sentence, beside others that are answered; all ranks let go of it."""
    config = EngineConfig(
        model=poisoned, pp=2, dtype="float32", max_model_len=600, kv_tokens=2400, handoff=handoff
    )
    hot = SamplingParams(temperature=1.0, seed=1, logprobs=20)
    refused = {
        "tiny penalty": {"sampling": SamplingParams(temperature=1.0, repetition_penalty=1e-40, logprobs=1)},
        "all banned": {"banned": range(300)},
        "half a seed": {"sampling": SamplingParams(seed=1.5)},  # type: ignore[arg-type]
        "huge top_k": {"sampling": SamplingParams(top_k=2**70)},
        "huge banned": {"banned": [2**70]},
        "no Unicode \ud800": {},
        "no text": {"salt": 7},
    }
    extreme: list[SamplingParams] = [
        SamplingParams(temperature=1e300, top_p=1e-300, min_p=1.0, seed=2**64 - 1, logprobs=20),
        SamplingParams(temperature=1e-300, top_k=2**31 - 1, repetition_penalty=1e3, logprobs=20, seed=0),
        SamplingParams(temperature=1.0, repetition_penalty=1e-3, seed=-(2**63), logprobs=20),
    ]
    with PrefillEngine(config) as engine:
        pids = engine.rank_pids
        for name, settings in refused.items():
            with pytest.raises(InvalidRequest):
                engine.submit(PrefillRequest.of(name, [1, 2, 3], **settings))  # type: ignore[arg-type]
        held = handoff != "none"
        bad = [
            engine.submit(PrefillRequest.of(f"bad-{i}", [1, 2, 5, i], sampling=params, handoff=held))
            for i, params in enumerate((SamplingParams(), hot, *extreme))
        ]
        good = [
            engine.submit(PrefillRequest.of(f"good-{i}", [1, 2, 6, i], sampling=params))
            for i, params in enumerate((SamplingParams(), hot, *extreme))
        ]
        for index, future in enumerate(bad):
            with pytest.raises(RequestFailed, match=f"request bad-{index} failed on rank 1.*not numbers"):
                future.result(60)
        assert all(0 <= future.result(60).first_token < 300 for future in good)
        engine.audit(10)
        assert engine.alive
        assert engine.rank_pids == pids
        again = engine.submit(PrefillRequest.of("bad-0", [1, 2, 6], handoff=held))
        assert again.result(60).prompt_tokens == 3, "its id is free again"
        assert engine.stats().failed == len(bad)


def test_what_follows_an_admission_and_raises_fails_its_request_alone(tiny_llama: Path) -> None:
    def broken() -> None:
        raise KeyError("no such room")

    config = EngineConfig(model=tiny_llama, pp=2, dtype="float32", max_model_len=600)
    with PrefillEngine(config) as engine:
        # A long one, so that it is not answered before it is admitted.
        bad = engine.submit(PrefillRequest.of("bad", [1] * 600), broken)
        with pytest.raises(RequestFailed, match=r"admission of request bad failed: KeyError.*no such room"):
            bad.result(60)
        assert submit(engine, "good", [1, 2]).result(60).prompt_tokens == 2
        engine.audit(10)


def test_an_event_that_cannot_be_handled_kills_the_engine_instead_of_silencing_it(tiny_llama: Path) -> None:
    reasons: list[str] = []

    def broken(_: object) -> None:
        raise KeyError("no such block")

    config = EngineConfig(model=tiny_llama, pp=1, kv_tokens=8192, dtype="float32")
    with PrefillEngine(config, on_index=broken, on_death=reasons.append) as engine:
        future = submit(engine, "any", [7] * 8000)
        with pytest.raises(EngineDead, match="no such block"):
            future.result(30)
        assert len(reasons) == 1
        assert not engine.alive


def test_an_engine_that_is_closed_while_it_starts_says_so_and_leaves_no_rank(tiny_llama: Path) -> None:
    engine = PrefillEngine(EngineConfig(model=tiny_llama, dtype="float32", max_model_len=600))
    refusals: list[EngineDead] = []

    def start() -> None:
        try:
            engine.start()
        except EngineDead as error:
            refusals.append(error)

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    deadline = time.monotonic() + 30
    while not engine.rank_pids and time.monotonic() < deadline:
        time.sleep(0.01)
    pids = engine.rank_pids
    engine.close()
    starting.join(20)
    assert "closed while it started" in str(refusals)
    assert pids
    assert not any(running(pid) for pid in pids)


def test_an_engine_that_is_started_again_keeps_its_ranks_and_leaves_nothing(
    tiny_llama: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    engine = PrefillEngine(EngineConfig(model=tiny_llama, pp=2, kv_tokens=512, max_model_len=256))
    engine.start()
    ranks = engine.rank_pids
    engine.start()
    assert engine.rank_pids == ranks
    assert engine.prefill([1, 2]).prompt_tokens == 2
    engine.close()
    assert not any(map(running, ranks))
    assert not list(scratch.iterdir())


def test_a_closed_engine_does_not_start(tiny_llama: Path) -> None:
    engine = PrefillEngine(EngineConfig(model=tiny_llama, dtype="float32", max_model_len=600))
    engine.close()
    with pytest.raises(EngineDead, match="closed before it had started"):
        engine.start()
    assert engine.rank_pids == []
    with pytest.raises(EngineDead, match="the engine was closed; make a new one"):
        engine.prefill([1])


@pytest.fixture
def never_answered(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[PrefillEngine, list[Future[PrefillResult]], list[str]]:
    """An engine that is not started, what it was asked, and what it was told to abort."""
    engine = PrefillEngine(EngineConfig(model=tiny_llama, dtype="float32"))
    asked: list[Future[PrefillResult]] = []
    aborted: list[str] = []

    def submit(request: PrefillRequest) -> Future[PrefillResult]:
        assert request.request_id not in aborted
        asked.append(Future())
        asked[-1].set_running_or_notify_cancel()
        return asked[-1]

    monkeypatch.setattr(engine, "submit", submit)
    monkeypatch.setattr(engine, "abort", aborted.append)
    return engine, asked, aborted


def test_a_cancelled_await_aborts_its_request_and_no_other(
    never_answered: tuple[PrefillEngine, list[Future[PrefillResult]], list[str]],
) -> None:
    engine, asked, aborted = never_answered

    async def check() -> None:
        tasks = [asyncio.create_task(engine.aprefill(prompt)) for prompt in ([1, 2], "hello")]
        while len(asked) < 2:
            await asyncio.sleep(0.001)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert len(aborted) == 1
        asked[1].set_exception(RequestFailed("as of a rank"))
        asked[0].set_exception(RequestFailed("as of a rank"))
        with pytest.raises(RequestFailed):
            await asyncio.gather(*tasks[1:])
        assert len(aborted) == 1
        with pytest.raises(InvalidRequest, match="one flat list"):
            await engine.aprefill([[1]])  # type: ignore[list-item]

    asyncio.run(asyncio.wait_for(check(), 60))


def test_who_is_interrupted_while_waiting_leaves_no_request_behind(
    never_answered: tuple[PrefillEngine, list[Future[PrefillResult]], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, asked, aborted = never_answered

    def interrupt(_: Future[PrefillResult]) -> PrefillResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.prefill([1, 2])
    assert (len(asked), len(aborted)) == (1, 1)


def test_what_is_no_configuration_is_refused_with_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match=r"give an EngineConfig, such as EngineConfig\(model='/m'\)"):
        PrefillEngine("/m")  # type: ignore[arg-type]


def test_from_its_birth_on_a_rank_is_not_ended_by_what_ends_its_engine() -> None:
    """A Ctrl-C goes to all processes of a terminal, also to those that have just begun to load."""

    class Config(msgspec.Struct):
        rank: int = 0
        threads: int = 1

    processes = RankProcesses([Config()], lambda rank, reason: None)  # type: ignore[list-item]
    try:
        status = Path(f"/proc/{processes.pids[0]}/status").read_text()
        blocked, ignored = (
            int(status.split(f"{field}:")[1].split()[0], 16) for field in ("SigBlk", "SigIgn")
        )
        for number in IGNORED_SIGNALS:
            assert (blocked | ignored) >> (number - 1) & 1, number
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(IGNORED_SIGNALS)
    finally:
        processes.kill()
        processes.close(5)
