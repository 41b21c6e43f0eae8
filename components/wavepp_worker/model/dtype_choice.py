"""What a model is computed in, known without a tensor library."""

from __future__ import annotations

from pathlib import Path

from wavepp_worker.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
"""What stages compute in, and the bytes of a number in it."""


def dtype_name(asked: str, stored: str, device: str = "cpu") -> str:
    """The dtype to compute in: ``float32``, ``bfloat16``, or ``auto``.

    ``auto`` is the checkpoint's, or float32 (which holds the others' values exactly) for a float16 checkpoint
    and on a CPU without bfloat16 instructions, where torch's products of bfloat16 take several times as long.

    Args:
        stored: the checkpoint's.

    Raises:
        ConfigError: another name is asked for; names ``dtype``.
    """
    if asked == "auto":
        slow = stored == "float16" or (device == "cpu" and not _cpu_has_bfloat16())
        return "float32" if slow else stored
    if asked not in DTYPE_BYTES:
        raise ConfigError(f"dtype: {asked} is not supported; use auto, float32 or bfloat16")
    return asked


def _cpu_has_bfloat16() -> bool:
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return not words.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})
