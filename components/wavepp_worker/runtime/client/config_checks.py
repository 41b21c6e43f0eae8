"""What can be said against a configuration before a rank is started, and what its ``auto`` values mean."""

from __future__ import annotations

import os
from typing import Literal

from wavepp_worker.errors import ConfigError
from wavepp_worker.handoff.transport_choice import resolve_transport
from wavepp_worker.model.device.placement import gpu_count
from wavepp_worker.model.timed.timed_model import is_timed
from wavepp_worker.runtime.planning.registry import make_planner
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.writable import check_writable, existing


def check_timeline(config: EngineConfig) -> None:
    """Raise ConfigError unless the timeline can be written where it shall be."""
    path = config.timeline
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"timeline is {path}, which is a directory; name a file in it")
    parent = path.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"timeline is {path}, but {parent} is not a directory that can be written to; make it, or name a "
            "file elsewhere"
        )


def check_disk_path(config: EngineConfig) -> None:
    """Raise ConfigError unless the disk tier can be where it shall be; it is made with all that lead to it."""
    path = config.disk_path
    if path is None:
        return
    try:
        check_writable(path)
    except OSError as error:
        raise ConfigError(
            f"disk_path is {path}, but {existing(path)} is not a directory that can be written to; name a "
            "directory elsewhere"
        ) from error


def check_planner(config: EngineConfig) -> None:
    """Raise ConfigError here, rather than in rank 0's process, if the sizes of waves do not suit the planner."""
    make_planner(config, config.pp)


def transport_of(config: EngineConfig) -> str:
    """The hand-off's transport: ``none``, ``socket`` or ``nixl``.

    Raises:
        ConfigError: it is not installed, or cannot read the KV of a timed model.
    """
    if config.handoff == "none" or not is_timed(config.model):
        return resolve_transport(config.handoff)
    if config.handoff == "nixl":
        raise ConfigError(
            f"handoff is nixl, but {config.model} is a timed model, which has no memory that NIXL could read; set "
            "handoff to socket"
        )
    return "socket"


def activations_of(config: EngineConfig) -> str:
    """How activations get from rank to rank: ``nccl``, ``ipc``, ``gloo`` or ``socket``.

    Raises:
        ConfigError: what is asked for cannot be had on these devices.
    """
    asked = config.activations
    if asked == "socket" or config.pp == 1 or is_timed(config.model):
        return "socket"
    on_gpus, count = config.device.startswith("cuda"), gpu_count()
    own = config.device == "cuda" and count >= config.pp
    if asked == "auto":
        if own and _has_nccl():
            return "nccl"
        return "ipc" if on_gpus else "socket"
    if asked == "nccl" and not own:
        raise ConfigError(
            f"activations is nccl, for which each of {config.pp} ranks needs a GPU of its own, but device is "
            f"{config.device} and {count} GPUs can be seen here; set activations to "
            f"{'ipc or ' if on_gpus else ''}socket, or lower pp"
        )
    if asked == "ipc" and not on_gpus:
        raise ConfigError(
            f"activations is ipc, which shares memory of GPUs, but device is {config.device}; set it to socket"
        )
    if asked == "nccl" and not _has_nccl():
        raise ConfigError(
            "activations is nccl, but torch is built without it here; set activations to socket"
        )
    if asked == "gloo" and on_gpus:
        raise ConfigError(
            "activations is gloo, which sends from CPUs, but device is cuda; set it to nccl or socket"
        )
    return asked


def _has_nccl() -> bool:
    # Imported late, as torch takes longer than all else of a check.
    from torch.distributed import is_nccl_available

    return is_nccl_available()


def ownership_of(config: EngineConfig) -> Literal["none", "lease"]:
    """Whether requests lease what they reuse.

    Raises:
        ConfigError: leases need ``admission=wave``.
    """
    if config.ownership == "auto":
        return "lease" if config.admission == "wave" else "none"
    if config.admission == "lockstep" and config.ownership == "lease":
        raise ConfigError(
            "ownership=lease needs admission=wave: lockstep admission allocates while the executors are "
            "paused; set ownership to none, or admission to wave"
        )
    return config.ownership


def order_of(config: EngineConfig, ownership: str) -> Literal["fcfs", "prefix"]:
    """Who is admitted first under pressure.

    Raises:
        ConfigError: ``prefix`` needs leases, and ``order_max_passed_tokens`` needs ``prefix``.
    """
    order = config.order
    if order == "auto":
        order = "prefix" if ownership == "lease" else "fcfs"
    if order == "prefix" and ownership != "lease":
        raise ConfigError(
            "order=prefix needs ownership=lease: it looks at which blocks requests hold before they run; set order to "
            "fcfs, or ownership to lease"
        )
    if order != "prefix" and config.order_max_passed_tokens is not None:
        raise ConfigError(
            "order_max_passed_tokens: with order=fcfs, which is the default without ownership=lease, nobody passes "
            "those who came earlier; leave it out, or set order to prefix"
        )
    return order
