"""The library of this engine's own CPU kernels: ``paged_attention.cpp``, ``linear.cpp``, ``elementwise.cpp``,
and ``decoder_layers.cpp``, which is made of these.

It is built when the package is installed where there is a compiler. Where it is not, or the CPU lacks AVX2, torch's
kernels do its work. Numbers are bfloat16 or float32; each kernel has a form for CPUs that multiply bfloat16
(AVX512-BF16), and one that computes either kind in float32. Attention and linear layers have one for AMX, too.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from wavepp_worker.errors import ConfigError

INSTRUCTIONS = ("AVX2", "AVX512", "AVX512_BF16", "AMX")
"""What ``WAVEPP_MAX_CPU_ISA`` may say that kernels use at most, as ``instructions.cpp`` knows it, with all before it.

For AVX-512 they have no form of their own, but leave more to torch, whose products are the faster ones with it.
"""

logger = logging.getLogger(__name__)

_VERSION = 7
"""Of what Python calls; must be that in ``instructions.cpp``. To be raised with any change of arguments or fields, or
of what they may be."""
_WITH_BFLOAT16, _BESIDE_AMX, _WITH_AMX = 2, 3, 4
"""What the library says where it runs and multiplies bfloat16, where torch has AMX beside it, and where kernels do."""


def computes_on(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels are there, and take tensors of this kind.

    Raises:
        ConfigError: as ``library()``.
    """
    return dtype in (torch.bfloat16, torch.float32) and device.type == "cpu" and library() is not None


@cache
def multiplies_bfloat16() -> bool:
    """Whether products of bfloat16 are as fast as this CPU computes; only where ``computes_on()`` holds."""
    return bool(_loaded().wavepp_kernels_run_here() >= _WITH_BFLOAT16)


@cache
def torch_has_amx() -> bool:
    """Whether torch multiplies bfloat16 by AMX, and kernels may; only where ``computes_on()`` holds."""
    return bool(_loaded().wavepp_kernels_run_here() >= _BESIDE_AMX)


@cache
def has_amx() -> bool:
    """Whether the kernels do; only where ``computes_on()`` holds."""
    return bool(_loaded().wavepp_kernels_run_here() >= _WITH_AMX)


@cache
def reads_packed_weights() -> bool:
    """Whether the kernels multiply packed weights of bfloat16; only where ``computes_on()`` holds.

    Not where torch has AMX and they have not: its products are the faster ones.
    """
    return has_amx() or (multiplies_bfloat16() and not torch_has_amx())


@cache
def library() -> ctypes.CDLL | None:
    """The library, if it is there and this CPU has the instructions. Says once if it was not built.

    Raises:
        ConfigError: ``WAVEPP_MAX_CPU_ISA`` is none of the ``INSTRUCTIONS``.
    """
    built = find_spec("wavepp_worker.model.cpu._kernels")
    if built is None or built.origin is None:
        _left_out(
            "there was no C++ compiler when wavepp-worker was installed; install g++, then wavepp-worker again"
        )
        return None
    _check_max_isa()
    # torch is loaded by now, so that the library shares its OpenMP threads rather than bring its own.
    try:
        loaded = ctypes.CDLL(built.origin)
    except OSError as error:
        _left_out(f"the kernels cannot be loaded ({error}); install wavepp-worker again, with g++ at hand")
        return None
    if getattr(loaded, f"wavepp_kernels_version_{_VERSION}", None) is None:
        _left_out(
            "the kernels were compiled for another version of wavepp-worker; install it again, with g++ at hand"
        )
        return None
    return loaded if loaded.wavepp_kernels_run_here() else None


def kernel(
    name: str,
    *arguments: type[ctypes.c_void_p | ctypes.c_int64 | ctypes.c_double | ctypes._Pointer[Any]],
    returns: type[ctypes.c_int64] | None = None,
) -> ctypes._FuncPointer:
    """A function of the library; only where ``computes_on()`` holds."""
    found: ctypes._FuncPointer = getattr(_loaded(), name)
    found.restype = returns
    found.argtypes = list(arguments)
    return found


def _check_max_isa() -> None:
    most = os.environ.get("WAVEPP_MAX_CPU_ISA")
    if most and most not in INSTRUCTIONS:
        raise ConfigError(
            f"WAVEPP_MAX_CPU_ISA: {most!r} is none of {', '.join(INSTRUCTIONS)}; name the most that kernels may "
            "use, or unset it to use all that this CPU has"
        )


def _left_out(why: str) -> None:
    logger.warning("models take several times as long as they could: %s", why)


def _loaded() -> ctypes.CDLL:
    loaded = library()
    assert loaded is not None, "computes_on() was not asked"
    return loaded
