"""The graphs that the campaign hurts, and how much is asked of them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.chaos.faults import EVERYWHERE, TO_DISKS, TO_QUEUES, Kind, Role

REQUEST_SECONDS = 60
"""The workers' limit for a request: a client's bound is above it."""
DISK_MEBIBYTES = 96
"""Room for the ranks' disk tiers, and some more."""

_COMMON = (
    "--Common.dtype=float32",
    "--Common.max_model_len=4096",
    f"--Common.request_timeout={REQUEST_SECONDS}",
    f"--DecodeWorker.handoff_timeout={REQUEST_SECONDS}",
    "--PrefillWorker.max_num_batched_tokens=256",
)


class Setting(msgspec.Struct, frozen=True):
    """One graph of the campaign.

    Attributes:
        name: for people and files.
        graph: as ``dynamo serve`` takes it.
        words: further arguments, without the model.
        faults: what is done to it.
        disk: whether its ranks have a disk tier.
    """

    name: str
    graph: str
    words: tuple[str, ...]
    faults: tuple[tuple[Kind, Role], ...] = EVERYWHERE
    disk: bool = False

    def command(self, model: Path, disk_path: Path) -> tuple[str, ...]:
        """The arguments of ``dynamo serve`` after the graph."""
        own = (f"--PrefillWorker.disk_path={disk_path}",) if self.disk else ()
        return (f"--Common.model={model}", *_COMMON, *self.words, *own)


DEFAULT = Setting("default", "graphs:disagg_wavepp", ("--PrefillWorker.kv_tokens=12288",))
"""Two prefill replicas of two ranks, a decode worker; caches small enough to be full."""
TIERS = Setting(
    "tiers",
    "graphs:disagg_wavepp",
    (
        "--PrefillWorker.ServiceArgs.workers=1",
        "--PrefillWorker.pp=4",
        "--PrefillWorker.kv_tokens=6144",
        "--PrefillWorker.host_kv_tokens=6144",
        "--PrefillWorker.disk_kv_tokens=24576",
    ),
    faults=(*EVERYWHERE, *TO_DISKS),
    disk=True,
)
"""One replica of four ranks whose blocks wander from device to host to disk."""
QUEUE = Setting(
    "queue",
    "graphs:disagg_wavepp_queue",
    (
        "--PrefillWorker.kv_tokens=12288",
        "--PrefillWorker.intake_silence=5",
        "--DecodeWorker.max_local_prefill_length=256",
        "--DecodeWorker.max_prefill_queue_size=8",
        "--DecodeWorker.max_num_batched_tokens=256",
    ),
    faults=(*EVERYWHERE, *TO_QUEUES),
)
"""Long prompts go through a queue, whose server is hurt as well; only if asked for."""
SETTINGS = {setting.name: setting for setting in (DEFAULT, TIERS, QUEUE)}
