"""The configuration of one decode engine: one place, validated at start, errors name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from wavepp_worker.former_names import LONGEST_SECONDS, SHORTEST_SECONDS, Settings


class DecodeConfig(Settings):
    """One decode worker: the whole model in one process.

    Every field is also a command-line flag of the same name with dashes, and a key of a service in
    ``configs/*.yaml``.
    """

    model: Path
    """A Hugging Face model directory (config, tokenizer, safetensors)."""
    lora_modules: tuple[str, ...] = ()
    """LoRA adapters that requests may choose, ``name=directory`` each; must be the prefill workers'."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Must be the prefill workers', as KV is taken over byte by byte."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """Of KV; ``auto`` is ``dtype``, ``fp8`` takes about half of bfloat16's bytes; must be the prefill workers', too."""
    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    threads: int = Field(default=1, ge=1)
    """Compute threads on the CPU."""
    block_size: int = Field(default=16, ge=1)
    """Tokens per KV block; need not be the prefill workers'."""
    kv_tokens: int | None = Field(default=None, ge=1)
    """Tokens of KV this worker can hold, instead of ``kv_memory_fraction``; 32768 of an engine without a worker."""
    kv_memory_fraction: float | None = Field(default=None, gt=0, le=1)
    """Fraction of its device's memory for KV, of what is free beside weights and activations, divided among all ranks
    that share the device; default: of workers 0.1 on a CPU and 0.9 on a GPU, unless ``kv_tokens`` is given."""
    max_num_seqs: int = Field(default=64, ge=1)
    """Most requests that hold KV at once."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Most tokens of a prompt and its generation; default: the model's context length."""
    top_logprobs: int = Field(default=20, ge=0)
    """Most alternatives a request may ask for."""
    host: str = "127.0.0.1"
    """Address this worker takes KV at, where the transport needs one."""
    handoff_timeout: float = Field(default=300.0, ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)
    """Seconds from a request's arrival until its KV and its first token must be here."""
    request_timeout: float = Field(default=600.0, ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)
    """Seconds after which a request that has not finished fails."""
    wave_timeout: float = Field(default=60.0, ge=1, le=LONGEST_SECONDS)
    """Seconds a step of the running batch may take before the worker counts as hung, fails and is started again; ten
    times what the slowest lately took, if that is more."""
