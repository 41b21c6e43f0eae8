"""One cell: on virtual devices, or on real ranks with a small model."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import typer
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import RoundPlanner, make_round_planner
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult

from bench.bursts.bounds import TOKEN_BYTES, bound_seconds, least_computed
from bench.bursts.forced import forced_seconds
from bench.bursts.rows import BurstRow
from bench.bursts.traffic import BurstCell, Sessions, sessions_of
from bench.common.closed_loop import HEARTBEAT
from bench.common.percentile import p95
from bench.common.prompts import Prompts
from bench.common.systems import BLOCK, VOCABULARY, WAVE_TOKENS, read_system_model, write_model_dir
from bench.virtual.replica import Replica

MODEL, HYBRID = "glm-5.2-pp4", "kimi-k3-pp8"
"""The devices' cost model, and that of a model which has recurrent layers; layers divide by every number of stages."""
REAL_BLOCK = 16
REAL_WAVE_TOKENS = 512
WARM_UP = (1024, 2048, 4096, 8192, 16384, 32768)
"""Prompts that a planner learns a wave's cost from before a cell: a replica that just started knows nothing yet."""


def without_making(config: RankConfig) -> RoundPlanner:
    """What rank 0 plans rounds with if requests reuse only what is computed."""
    headroom = config.headroom_blocks * config.block_size
    return RoundPlanner(AdmissionQueue(config.max_num_seqs, headroom_tokens=headroom), leases=True)


def measure_virtual(
    cell: BurstCell, stages: int, making: bool, kv_tokens: int, interval: int = 0, charge: float = 1.0
) -> BurstRow:
    """A cell on a fresh replica on the virtual clock.

    Args:
        interval: tokens between snapshots of recurrent layers; 0 for attention alone.
        charge: what the host's CPU time counts.
    """
    model = HYBRID if interval else MODEL
    sessions = sessions_of(cell, VOCABULARY)
    longest = max(*WARM_UP, *(len(prompt) // TOKEN_BYTES for each in sessions for prompt in each))
    if kv_tokens < longest:
        raise typer.BadParameter(
            f"{kv_tokens} tokens hold no prompt of {longest}, which is measured; give at least as many",
            param_hint="--kv-tokens",
        )
    with tempfile.TemporaryDirectory() as directory:
        config = EngineConfig(
            model=write_model_dir(model, 1.0, Path(directory)),
            pp=stages,
            max_num_batched_tokens=WAVE_TOKENS,
            block_size=BLOCK,
            kv_tokens=kv_tokens,
            max_num_seqs=128,
        )
        planner = make_round_planner if making else without_making
        replica = Replica(config, charge=charge, round_planner=planner, interval=interval or None)
    new = Prompts(0)
    replica.closed_loop((new.tokens(each) for each in WARM_UP * 3), 3)
    begun = replica.events.now
    served = replica.sessions(sessions)
    seconds = replica.events.now - begun
    replica.audit()
    return _row(
        cell,
        stages,
        making,
        sessions,
        BLOCK,
        clock="virtual",
        seconds=seconds,
        reused=sum(each.reused_tokens for each in served),
        completion=[each.completion for each in served],
        waves=replica.waves,
        rounds=replica.rounds,
        bound=bound_seconds(read_system_model(model), stages, sessions, BLOCK),
        forced=forced_seconds(
            read_system_model(model), stages, sessions, BLOCK, riders=making and not interval
        ),
        interval=interval,
    )


def measure_real(
    cells: Sequence[BurstCell], model: Path, vocabulary: int, stages: int, making: bool, kv_tokens: int
) -> Iterator[BurstRow]:
    """Cells on one engine, one after the other; without ``making``, by admission that allocates at once."""
    config = EngineConfig(
        model=model,
        pp=stages,
        dtype="float32",
        max_num_batched_tokens=REAL_WAVE_TOKENS,
        block_size=REAL_BLOCK,
        kv_tokens=kv_tokens,
        max_num_seqs=128,
        ownership="lease" if making else "none",
    )
    with PrefillEngine(config) as engine:
        new = Prompts(0, vocabulary)
        ask_sessions(engine, [[new.tokens(each) for each in (256, 1024, 4096)]] * 2, "first")
        for cell in cells:
            sessions = sessions_of(cell, vocabulary)
            before, begun = engine.stats(), time.perf_counter()
            results = ask_sessions(engine, sessions, cell.name)
            seconds = time.perf_counter() - begun
            time.sleep(HEARTBEAT)
            after = engine.stats()
            yield _row(
                cell,
                stages,
                making,
                sessions,
                REAL_BLOCK,
                clock="real",
                seconds=seconds,
                reused=sum(each.reused_tokens for each in results),
                completion=[each.timings.total for each in results],
                waves=after.waves - before.waves,
                rounds=after.rounds - before.rounds,
            )
        engine.audit()


def ask_sessions(engine: PrefillEngine, sessions: Sessions, name: str) -> list[PrefillResult]:
    """Begin all sessions now; each sends its next prompt when the last one is answered.

    Raises:
        WaveppError: a prompt failed.
    """

    def ask(number: int, prompts: list[bytes]) -> list[PrefillResult]:
        requests = (
            PrefillRequest(request_id=f"{name}-{number}-{turn}", tokens=tokens)
            for turn, tokens in enumerate(prompts)
        )
        return [engine.submit(request).result() for request in requests]

    with ThreadPoolExecutor(len(sessions)) as clients:
        asked = [clients.submit(ask, number, prompts) for number, prompts in enumerate(sessions)]
        return [result for answered in asked for result in answered.result()]


def _row(
    cell: BurstCell,
    stages: int,
    making: bool,
    sessions: Sessions,
    block_size: int,
    *,
    clock: str,
    seconds: float,
    reused: int,
    completion: Sequence[float],
    waves: int,
    rounds: int,
    bound: float = 0.0,
    forced: float = 0.0,
    interval: int = 0,
) -> BurstRow:
    prompts = [prompt for asked in sessions for prompt in asked]
    tokens = sum(map(len, prompts)) // TOKEN_BYTES
    return BurstRow(
        name=cell.name,
        stages=stages,
        making=making,
        clock=clock,
        sessions=cell.sessions,
        requests=len(prompts),
        tokens=tokens,
        computed=tokens - reused,
        least=least_computed(prompts, block_size).tokens,
        seconds=seconds,
        p50=statistics.median(completion),
        p95=p95(completion),
        waves=waves,
        rounds=rounds,
        bound=bound,
        forced=forced,
        interval=interval,
    )
