"""Whether FlashInfer is there, and whether what it computes is right."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

_DTYPES = (torch.float16, torch.bfloat16)


def installed_for(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether it is installed, and may have kernels on a device for numbers of a dtype."""
    return device.type == "cuda" and dtype in _DTYPES and importlib.util.find_spec("flashinfer") is not None


def fault_of(check: Callable[[], bool]) -> str:
    """Why kernels are not to be used; empty if ``check`` says that they compute what torch does."""
    try:
        return "" if check() else "it computes something else than torch"
    except Exception as error:
        # They are compiled at their first call, which fails in as many ways as there are machines.
        return (str(error).strip().splitlines() or [type(error).__name__])[-1]
