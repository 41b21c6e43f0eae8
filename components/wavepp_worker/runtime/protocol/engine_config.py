"""The configuration of one prefill engine: one place, validated at start, errors name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from wavepp_worker.former_names import LONGEST_SECONDS, SHORTEST_SECONDS, Settings
from wavepp_worker.setting_bounds import AtLeast

MOST_SEQUENCES = 1 << 20
"""Requests of one replica: far more than any machine has room for, and few enough to count with."""
MOST_TOKENS = 1 << 60
"""Likewise."""


class EngineConfig(Settings):
    """One WavePP prefill replica.

    Every field is also a command-line flag of the same name with dashes, and a key of a service in
    ``configs/*.yaml``.

    >>> EngineConfig(model="/models/llama", pp=2, threads=0)
    Traceback (most recent call last):
    wavepp_worker.errors.ConfigError: threads: should be at least 1, not 0
    """

    model: Path
    """A Hugging Face model directory (config, tokenizer, safetensors)."""
    lora_modules: tuple[str, ...] = ()
    """LoRA adapters that requests may choose, ``name=directory`` each, as PEFT saves them."""
    pp: int = Field(default=1, ge=1)
    """Pipeline ranks; each is a process."""
    partition: tuple[int, ...] | None = None
    """Layers per rank, e.g. ``10,8,6,6``; default: balanced by cost."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and activations; ``auto`` is the checkpoint's, or float32 on a CPU without bfloat16."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """Of KV; ``auto`` is ``dtype``, ``fp8`` takes about half of bfloat16's bytes, and changes answers a little."""
    device: str = "cpu"
    """``cpu`` or ``cuda``; rank ``r`` takes ``cuda:(r mod device count)``."""
    activations: Literal["auto", "nccl", "ipc", "gloo", "socket"] = "auto"
    """How they get from rank to rank: ``nccl`` from GPU to GPU, where each rank has one of its own and torch has NCCL;
    ``ipc`` by memory of a GPU that both ranks open, which may share it; ``socket`` by host memory; ``gloo``, on CPUs,
    is there to try what ``nccl`` does. ``auto`` is the first of ``nccl``, ``ipc`` and ``socket`` that is possible."""
    threads: int = Field(default=1, ge=1)
    """Compute threads per rank on the CPU."""
    max_num_batched_tokens: int = Field(default=512, ge=1)
    """M, the maximum number of tokens in a wave."""
    block_size: int = Field(default=16, ge=1)
    """B, tokens per KV block."""
    kv_tokens: Annotated[int | tuple[int, ...] | None, AtLeast(1)] = None
    """Tokens of KV each rank can hold on its device (one number, or one per rank), instead of ``kv_memory_fraction``;
    32768 of an engine without a worker."""
    kv_memory_fraction: float | None = Field(default=None, gt=0, le=1)
    """Fraction of its device's memory for KV, of what is free beside weights and activations, divided among all ranks
    that share the device; default: of workers 0.1 on a CPU and 0.9 on a GPU, unless ``kv_tokens`` is given."""
    host_kv_tokens: Annotated[int | tuple[int, ...], AtLeast(0)] = 0
    """Tokens of KV each rank can keep in host memory beside that; what the device evicts goes there."""
    disk_kv_tokens: Annotated[int | tuple[int, ...], AtLeast(0)] = 0
    """Tokens of KV each rank can keep on disk under ``disk_path``; what the host evicts goes there."""
    snapshot_interval: int | None = Field(default=None, ge=1)
    """Of models with recurrent layers: tokens between two snapshots of their state, at which prompts can be resumed; a
    multiple of ``block_size``. Default: 1024, or the next multiple. Snapshots are taken as well where a prompt ends,
    and where others leave it."""
    state_blocks: Annotated[int | tuple[int, ...] | None, AtLeast(3)] = None
    """Of models with recurrent layers: states each rank can hold on its device, one for each request that runs and one
    for each snapshot: a request's own, the one it resumes from, and the one it leaves are the least. Default:
    ``max_num_seqs``, and one for each ``snapshot_interval`` of ``kv_tokens``, or two. Host memory and disk keep one for
    each ``snapshot_interval`` of their tokens."""
    disk_path: Path | None = None
    """Directory of the disk tier; its contents survive a restart. Each replica needs its own, which ``dynamo serve``
    sees to."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Longest prompt accepted, in tokens; default: the model's context length."""
    max_num_seqs: int = Field(default=64, ge=1, le=MOST_SEQUENCES)
    """Most requests that share waves, and most that hold a lease ahead of them."""
    admission: Literal["lockstep", "wave"] = "wave"
    """``wave`` prepares requests beside execution; ``lockstep`` pauses it meanwhile (for comparison)."""
    ownership: Literal["auto", "none", "lease"] = "auto"
    """``lease`` pins and reserves until a request runs, the default with ``wave``; ``none`` allocates at
    admission (for comparison)."""
    order: Literal["auto", "fcfs", "prefix"] = "auto"
    """Who is admitted first while what waits does not fit the cache: ``fcfs`` is who came first; ``prefix`` is who
    reuses most of what is there, so that requests of one prefix run together, the default with ``ownership=lease``.
    Requests of a higher priority come before all others."""
    order_max_passed_tokens: int | None = Field(default=None, ge=0, le=MOST_TOKENS)
    """Most tokens that those compute in all which ``order=prefix`` admits before a request that came earlier;
    default: twice what the smallest rank's KV holds. Other orders have none."""
    round_delay: float = Field(default=0.0, ge=0, le=10)
    """Seconds added to every admission round, at most 10, to measure that admission does not hold execution up."""
    planner: Literal["greedy", "throttle", "two-budget", "mpu-paper", "mpu"] = "mpu"
    """``mpu`` sizes waves by time, so that every stage has work. For comparison: ``mpu-paper`` does it by tokens,
    ``two-budget`` chooses between ``max_num_batched_tokens`` and half of it, ``greedy`` fills every wave up to that,
    ``throttle`` is gLLM's formula."""
    min_num_batched_tokens: int | None = Field(default=None, ge=1)
    """Fewest tokens a wave's budget shrinks to (b_min), for ``mpu``, ``mpu-paper`` and ``throttle``; default: half of
    ``max_num_batched_tokens``, a 32nd for ``mpu``."""
    wave_cost: tuple[float, float, float] | None = None
    """Seconds of the slowest stage per wave, per token, and per token and token of context, for ``mpu``; default:
    learned from the waves as they are executed."""
    timeline: Path | None = None
    """File to write a trace of every rank to when the replica stops, for ui.perfetto.dev; default: none. Each
    replica needs its own, which ``dynamo serve`` sees to."""
    top_logprobs: int = Field(default=20, ge=0)
    """Most alternatives a request may ask for."""
    host: str = "127.0.0.1"
    """Address the hand-off listens on and is advertised by."""
    handoff: Literal["none", "socket", "nixl", "auto"] = "none"
    """Transport of KV to decode; ``auto`` is NIXL where installed, else the socket transport."""
    handoff_timeout: float = Field(default=60.0, ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)
    """Seconds after which KV returns to the pool that no decode worker asks for, or whose decode worker is silent."""
    request_timeout: float = Field(default=600.0, ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)
    """Seconds after which a request that has not finished fails."""
    start_timeout: float = Field(default=300.0, ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)
    """Seconds the ranks have to load and connect, and any wave has of which none of its size ran before."""
    wave_timeout: float = Field(default=60.0, ge=1, le=LONGEST_SECONDS)
    """Seconds a wave may take on a rank before the replica counts as hung, fails and is started again; ten times
    what the slowest wave of its size lately took, if that is more. Also how long a rank's process may be silent."""
