"""Python processes that begin with torch and transformers imported; without, importing is most of what ranks take.

One process, the *nursery* (``nursery.py``), imports them and forks whenever a process is wanted. What it forks is a
child of whoever asked, with the command line, environment, directory and standard files that it would have been spawned
with.

A process that starts others itself can be given a nursery of its own: forked as well, before it has begun.

Unlike a spawned one, a warm process finds modules wherever whoever asked does, and has what libraries read from the
environment when they are imported (OpenMP's threads and spins, for one) from the nursery.
"""

from __future__ import annotations

import array
import ctypes
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, AnyStr

from wavepp_worker.runtime.client.rank_processes import RANK_MODULE

ROOM_FOR_COMMANDS = 1024
ROOM_FOR_ENVIRONMENTS = 1 << 15
LARGEST_MESSAGE = 1 << 18
_REPLY_SECONDS = 60.0
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class Nursery:
    """Forks on demand; started when first needed. Thread-safe."""

    def __init__(self, ours: socket.socket | None = None) -> None:
        """``ours``: to one that runs already, as a descendant of this process."""
        self._lock = threading.Lock()
        self._socket = ours
        self._process: subprocess.Popen[bytes] | None = None

    def fork(
        self,
        command: list[str],
        environment: dict[str, str],
        files: tuple[int, int, int],
        *,
        directory: str | None = None,
        session: bool = False,
        starts_others: bool = False,
    ) -> int:
        """The process id of a new child of this process.

        Args:
            command: a Python, ``-m``, a module and its arguments.
            files: standard input, output and error.
            directory: to start in, if not this process's.
            session: whether it is to lead one.
            starts_others: whether what it starts is to be warm as well; ignored for ranks, which start nothing.

        Raises:
            RuntimeError: the nursery is gone or takes too long; of this process's own, the next call starts another.
        """
        asked = {
            "command": command,
            "environment": environment,
            "directory": os.path.abspath(directory or "."),
            "path": sys.path,
            "session": session,
            "starts_others": starts_others and command[2] != RANK_MODULE,
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        }
        with self._lock, _Subreaper():
            ours = self._started()
            try:
                # Two messages: ancillary data belongs to a byte, and an environment may not fit beside it.
                ours.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
                ours.send(json.dumps(asked).encode())
                answer = ours.recv(64)
            except BaseException:
                # Its late answer must not be taken for the next one's.
                self._end()
                raise
            if not answer:
                self._end()
                raise RuntimeError(f"the nursery could not start {command}")
            return int(answer)

    def _started(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = nursery_ends()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.nursery",
                    str(theirs.fileno()),
                    "-" * ROOM_FOR_COMMANDS,
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "ROOM_FOR_ENVIRONMENTS": "-" * ROOM_FOR_ENVIRONMENTS,
                },
            )
            theirs.close()
        return self._socket

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._socket = None
            self._process.wait(_REPLY_SECONDS)


class WarmPopen(subprocess.Popen[AnyStr]):
    """A ``subprocess.Popen`` of ``[python, "-m", module, …]`` that the nursery forks; of others, one as ever."""

    nursery = Nursery()
    starts_others = False

    def _execute_child(self, args: Any, *others: Any) -> None:
        spawn = super()._execute_child  # type: ignore[misc]
        asked = inspect.signature(spawn).bind(args, *others).arguments
        if not _can_be_forked(asked):
            spawn(args, *others)
            return
        # The child's end of each, where it is not to have ours.
        ends = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
        files = [end if end != -1 else standard for standard, end in enumerate(ends)]
        environment = os.environ if asked["env"] is None else asked["env"]
        self.pid = self.nursery.fork(
            [os.fspath(word) for word in args],
            dict(environment),
            (files[0], files[1], files[2]),
            directory=asked["cwd"] and os.fspath(asked["cwd"]),
            session=asked["start_new_session"],
            starts_others=self.starts_others,
        )
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[pipe] for pipe in pipes))  # type: ignore[attr-defined]


def _can_be_forked(asked: Mapping[str, Any]) -> bool:
    """Whether a process with these arguments of ``_execute_child`` is a module's, and in nothing else unusual."""
    words = asked["args"]
    if isinstance(words, str | bytes | os.PathLike) or list(words[:2]) != [sys.executable, "-m"]:
        return False
    unusual = (asked[name] for name in ("executable", "preexec_fn", "pass_fds", "shell"))
    return not any(unusual) and not any(
        asked.get(name) not in (None, -1) for name in ("gid", "gids", "uid", "umask", "process_group")
    )


class WarmProgram(WarmPopen[AnyStr]):
    """The same of a program that starts others: in it, this class is ``subprocess.Popen``."""

    starts_others = True


class WarmSubprocess:
    """What a module needs of ``subprocess``, with warm processes."""

    Popen = WarmPopen
    PIPE = subprocess.PIPE
    TimeoutExpired = subprocess.TimeoutExpired


class _Subreaper:
    """Meanwhile, what an intermediate process leaves behind becomes this process's child."""

    def __enter__(self) -> None:
        before = ctypes.c_int()
        _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
        self._before = before.value
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def __exit__(self, *raised: object) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, self._before)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def nursery_ends() -> tuple[socket.socket, socket.socket]:
    """Where to ask a nursery, and where it is asked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST_MESSAGE)
    ours.settimeout(_REPLY_SECONDS)
    return ours, theirs
