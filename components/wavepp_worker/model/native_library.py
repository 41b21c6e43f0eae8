"""The library of this engine's own CPU kernels: ``paged_attention.cpp``, ``thin_linear.cpp``, ``elementwise.cpp``.

It is built when the package is installed where there is a compiler. Where it is not, or the CPU lacks AVX512-BF16,
torch's kernels do its work.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from importlib.util import find_spec

import torch

logger = logging.getLogger(__name__)


def computes_on(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels are there, and take tensors of this kind."""
    return dtype is torch.bfloat16 and device.type == "cpu" and library() is not None


@cache
def library() -> ctypes.CDLL | None:
    """The library, if it is there and this CPU has the instructions. Says once if it was not built."""
    built = find_spec("wavepp_worker.model._kernels")
    if built is None or built.origin is None:
        logger.warning(
            "models take several times as long as they could: there was no C++ compiler when wavepp-worker was "
            "installed; install g++, then wavepp-worker again"
        )
        return None
    # torch is loaded by now, so that the library shares its OpenMP threads rather than bring its own.
    loaded = ctypes.CDLL(built.origin)
    return loaded if loaded.wavepp_kernels_run_here() else None


def kernel(
    name: str, *arguments: type[ctypes.c_void_p | ctypes.c_int64 | ctypes.c_double]
) -> ctypes._FuncPointer:
    """A function of the library that returns nothing; only where ``computes_on()`` holds."""
    loaded = library()
    assert loaded is not None, "computes_on() was not asked"
    found: ctypes._FuncPointer = getattr(loaded, name)
    found.restype = None
    found.argtypes = list(arguments)
    return found
