"""One rank's tensor plane in a process of its own: ``tensor_plane_rank SCENARIO RANK RANKS MEETING KIND``.

Prints what came of it as a line of JSON. ``KIND`` is ``host``, or ``gpu`` or ``ipc``: planes of GPUs over a fake of
``torch.cuda``, with Gloo in place of NCCL, or files in place of the memory that ranks share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq
from wavepp_worker.errors import WaveppError
from wavepp_worker.runtime.protocol.waves import Span, TensorMeta, WaveHeader
from wavepp_worker.runtime.rank import tensor_plane
from wavepp_worker.runtime.rank.data_plane import DataPlane
from wavepp_worker.runtime.rank.ipc_plane import open_ipc_plane
from wavepp_worker.runtime.rank.tensor_plane import open_tensor_plane

from tests.support.fake_cuda import FakeCuda
from tests.support.fake_sharing import fake_sharing

SOON = 10_000
WAVES = 20
LARGE = TensorMeta("hidden", "float32", (4_000_000,))


def first_tensors(wave: int) -> dict[str, torch.Tensor]:
    """What rank 0 sends of a wave: views, and other sizes each time."""
    hidden = torch.arange(64.0).view(8, 8) + wave
    picked = torch.arange(wave % 5 + 1, dtype=torch.int32)[:, None]
    return {"hidden": hidden.T[: wave % 7 + 1].bfloat16(), "picked": picked}


def waves(rank: int, ranks: int, meeting: Path, plane: Any) -> object:
    """Each rank adds 1 and passes on; the last one says what it got."""
    del meeting
    got = []
    for wave in range(WAVES):
        header, tensors = WaveHeader(wave_id=wave, spans=(Span("a", wave, 1, False),)), first_tensors(wave)
        if rank:
            assert plane.socket.poll(SOON)
            header, tensors = plane.receive()
        got.append([header.wave_id, {name: tensor.tolist() for name, tensor in tensors.items()}])
        if rank < ranks - 1:
            plane.send_wave(header, {name: tensor + 1 for name, tensor in tensors.items()})
    return got if rank == ranks - 1 else listening()


def listening() -> list[str]:
    """Addresses at which this process takes connections over TCP, as the kernel writes them."""
    own = {os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]


def lost(rank: int, ranks: int, meeting: Path, plane: Any) -> object:
    """Rank 0 goes without a word; rank 1 waits for what does not come."""
    del ranks
    here = meeting.with_suffix(".here")
    if rank == 0:
        _until(here.exists)
        os._exit(3)
    here.touch()
    return _raised(lambda: plane._tensors.receive([LARGE]))


def silent(rank: int, ranks: int, meeting: Path, plane: Any) -> object:
    """Rank 0 sends nothing and stays; when rank 1 has given up, each closes."""
    del ranks
    if rank:
        return [
            _raised(lambda: plane._tensors.receive([LARGE])),
            _closing(plane),
            meeting.with_suffix(".done").touch(),
        ]
    _until(meeting.with_suffix(".done").exists)
    return None


def deaf(rank: int, ranks: int, meeting: Path, plane: Any) -> object:
    """Rank 1 takes nothing; rank 0 sends more than may be in flight, and closes."""
    if rank:
        _until(meeting.with_suffix(".done").exists)
        return None
    large = torch.zeros(LARGE.shape)
    begun = time.monotonic()
    for _ in range(2 * ranks):
        plane._tensors.send([large])
    sending = time.monotonic() - begun
    return [
        _raised(lambda: plane._tensors.send([large])),
        _closing(plane),
        sending,
        meeting.with_suffix(".done").touch(),
    ]


def _until(there: Callable[[], bool]) -> None:
    while not there():
        time.sleep(0.01)


def _raised(act: Any) -> list[object]:
    begun = time.monotonic()
    try:
        act()
    except WaveppError as error:
        return [type(error).__name__, str(error), time.monotonic() - begun]
    return ["nothing", "", 0.0]


def _closing(plane: Any) -> float:
    begun = time.monotonic()
    plane._tensors.close()
    return time.monotonic() - begun


def main() -> None:
    scenario, kind = sys.argv[1], sys.argv[5]
    rank, ranks, meeting = int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    timeout = 30.0 if scenario == "waves" else 1.0
    if kind == "gpu":
        FakeCuda(pytest.MonkeyPatch())
        tensor_plane.HostPlane = tensor_plane.GpuPlane  # type: ignore[misc,assignment]
    if kind == "ipc":
        fake_sharing(pytest.MonkeyPatch())
    cpu = torch.device("cpu")
    with zmq.Context() as context:
        try:
            if kind == "ipc":
                tensors = open_ipc_plane(context, rank, ranks, f"{meeting}-m", cpu, 9, timeout, or_none=False)
            else:
                tensors = open_tensor_plane("gloo", rank, ranks, cpu, meeting, timeout)
        except WaveppError as error:
            print(json.dumps([type(error).__name__, str(error)]), flush=True)
            return
        addresses = [f"ipc://{meeting}-{each % ranks}" for each in (rank, rank + 1)]
        plane = DataPlane(context, *addresses, tensors)
        said = globals()[scenario](rank, ranks, meeting, plane)
        print(json.dumps(said), flush=True)
        plane.close()


if __name__ == "__main__":
    main()
