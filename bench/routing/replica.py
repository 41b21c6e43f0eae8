"""Replicas on virtual devices that a whole graph can serve, and what one of their stages costs."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
from wavepp_worker.model.files.demo_model import ensure_demo_model
from wavepp_worker.model.timed.timed_model import write_timed_model
from wavepp_worker.runtime.planning.wave_cost import WaveCost

from bench.common.systems import read_system_model, stage_cost

MODEL = "glm-5.2-pp4"
STAGES = 2
SPEED = 0.25
"""Of the model's devices: slow enough for two cores to be the host of several replicas."""
WAVE_TOKENS = 2048
BLOCK = 16
LONGEST = 16_384
"""Tokens of a prompt and its answer, at most."""
TOKEN_IDS = range(1000, 20000)
"""Whole words of the demo model's tokenizer: after bytes of unfinished characters a frontend waits for the next."""


def write_replica_model(root: Path) -> Path:
    """A timed model under ``root`` with the demo model's tokenizer, without which a frontend serves nothing."""
    changes = {"speed": SPEED, "vocabulary": TOKEN_IDS.stop, "context_length": LONGEST}
    model = msgspec.structs.replace(read_system_model(MODEL), **changes)
    directory = write_timed_model(root / "replica", model)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        file = ensure_demo_model() / name
        if file.exists():
            shutil.copy(file, directory)
    return directory


def replica_cost(scale: int) -> WaveCost:
    """What a wave costs a stage, where ``scale`` tokens of a trace are one of the replica's."""
    cost = stage_cost(read_system_model(MODEL), STAGES)
    return WaveCost(cost.a / SPEED, cost.b / SPEED / scale, cost.c / SPEED / scale**2)


def serve_words(directory: Path, mode: str, replicas: int, kv_tokens: int) -> tuple[str, ...]:
    """What ``dynamo serve graphs:disagg_wavepp`` is told, so that ``replicas`` are on virtual devices.

    Args:
        directory: the model's.
        mode: the router's; but for ``kv``, what it needs KV events for is switched off.
        kv_tokens: tokens of KV of each rank.
    """
    words = (
        f"--Common.model={directory}",
        f"--Common.block_size={BLOCK}",
        f"--Frontend.router_mode={mode}",
        f"--PrefillWorker.pp={STAGES}",
        f"--PrefillWorker.max_num_batched_tokens={WAVE_TOKENS}",
        f"--PrefillWorker.kv_tokens={kv_tokens}",
        f"--PrefillWorker.ServiceArgs.workers={replicas}",
        # One decode worker takes the KV of all of them.
        "--DecodeWorker.kv_tokens=1000000",
    )
    return words if mode == "kv" else (*words, "--Frontend.router_predicted_ttl_secs=null")
