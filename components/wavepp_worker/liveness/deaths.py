"""Which processes of a run have died lately: the launcher notes it in a file, and who answers clients reads it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import msgspec

VARIABLE = "WAVEPP_DEATHS"
"""The environment variable with the file's path."""
_KEPT = 16


class Death(msgspec.Struct, frozen=True):
    """The end of one process's life, unasked.

    Attributes:
        label: the process, such as ``PrefillWorker:1``.
        why: to follow the label: ``was ended by SIGKILL``.
        at: monotonic seconds, which are the same in all processes of a machine.
    """

    label: str
    why: str
    at: float


class DeathNotes:
    """The launcher's side: writes the last deaths."""

    def __init__(self, path: Path) -> None:
        """Begin the file ``path``, with nobody in it."""
        self._path = path
        self._deaths: deque[Death] = deque(maxlen=_KEPT)
        self._write()

    def note(self, death: Death) -> None:
        """Let others know of it at once; on a full disk they do not get to know."""
        self._deaths.append(death)
        self._write()

    def _write(self) -> None:
        scratch = self._path.with_name(f".{self._path.name}")
        with contextlib.suppress(OSError):
            scratch.write_bytes(msgspec.json.encode(list(self._deaths)))
            scratch.replace(self._path)


def deaths_since(environment: Mapping[str, str], since: float) -> list[Death]:
    """Who died at ``since`` or later, in monotonic seconds, the last death of each; nobody if no launcher tells."""
    path = environment.get(VARIABLE)
    if path is None:
        return []
    try:
        deaths = msgspec.json.decode(Path(path).read_bytes(), type=list[Death])
    except (OSError, msgspec.MsgspecError):
        return []
    return list({death.label: death for death in deaths if death.at >= since}.values())
