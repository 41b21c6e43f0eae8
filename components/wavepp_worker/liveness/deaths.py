"""Which processes of a run have died lately: the launcher notes it in a file, and who answers clients reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

VARIABLE = "WAVEPP_DEATHS"
"""The environment variable with the file's path."""


class Death(msgspec.Struct, frozen=True):
    """The end of one process's life, unasked.

    Attributes:
        label: the process, such as ``PrefillWorker:1``.
        why: to follow the label: ``was ended by SIGKILL``.
        at: monotonic seconds, which are the same in all processes of a machine.
        back: when the process was ready again, or nobody wanted it any more, in the same seconds; None while it is
            missed.
    """

    label: str
    why: str
    at: float
    back: float | None = None


class DeathNotes:
    """The launcher's side: writes the last death of each process."""

    def __init__(self, path: Path) -> None:
        """Begin the file ``path``, with nobody in it."""
        self._path = path
        self._deaths: dict[str, Death] = {}
        self._write()

    def note(self, death: Death) -> None:
        """Let others know of it at once; on a full disk they do not get to know."""
        self._deaths.pop(death.label, None)
        self._deaths[death.label] = death
        self._write()

    def back(self, label: str, at: float) -> None:
        """Let others know that a process is ready, or is wanted no more, at ``at`` in monotonic seconds.

        Ignored if it never died.
        """
        if (death := self._deaths.get(label)) is not None:
            self._deaths[label] = msgspec.structs.replace(death, back=at)
            self._write()

    def _write(self) -> None:
        scratch = self._path.with_name(f".{self._path.name}")
        with contextlib.suppress(OSError):
            scratch.write_bytes(msgspec.json.encode(list(self._deaths.values())))
            scratch.replace(self._path)


def deaths_since(environment: Mapping[str, str], since: float) -> list[Death]:
    """Who died at ``since`` or later, in monotonic seconds; nobody if no launcher tells."""
    return [death for death in _read(environment) if death.at >= since]


def missed_since(environment: Mapping[str, str], since: float) -> list[Death]:
    """Who has died and is not back; if all are, who came back at ``since`` or later."""
    return to_blame([death for death in _read(environment) if death.back is None or death.back >= since])


def to_blame(deaths: list[Death]) -> list[Death]:
    """Those of them who are not back; all, if all are."""
    return [death for death in deaths if death.back is None] or deaths


def _read(environment: Mapping[str, str]) -> list[Death]:
    path = environment.get(VARIABLE)
    if path is None:
        return []
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=list[Death])
    except (OSError, msgspec.MsgspecError):
        return []
