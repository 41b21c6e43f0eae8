"""Python processes that begin with torch and transformers imported; without, importing is most of what ranks take.

One process, the *nursery*, imports them and forks whenever a process is wanted. What it forks is a child of whoever
asked, with the command line, environment, directory and standard files that it would have been spawned with.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

IMPORTS = (
    "wavepp_worker.runtime.rank.build",
    "wavepp_worker.handoff.transport",
    "wavepp_worker.model.torch_loader",
    "transformers.models.llama.modeling_llama",
)
ROOM_FOR_COMMANDS = 512
_REPLY_SECONDS = 60.0
_LARGEST = 1 << 18
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class Nursery:
    """Forks on demand; started when first needed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, command: list[str], environment: dict[str, str], files: tuple[int, int, int]) -> int:
        """The process id of a new child of this process.

        Args:
            command: a Python, ``-m``, a module and its arguments.
            files: standard input, output and error.
        """
        asked = {
            "command": command,
            "environment": environment,
            "directory": os.getcwd(),
            "path": sys.path,
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        }
        with self._lock, _Subreaper():
            ours = self._started()
            # Two messages: ancillary data belongs to a byte, and an environment may not fit beside it.
            ours.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
            ours.send(json.dumps(asked).encode())
            return int(ours.recv(64))

    def _started(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (self._socket, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
            self._socket.settimeout(_REPLY_SECONDS)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), "-" * ROOM_FOR_COMMANDS],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
            theirs.close()
        return self._socket

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(_REPLY_SECONDS)


class WarmPopen(subprocess.Popen[bytes]):
    """A ``subprocess.Popen`` of ``[python, "-m", module, …]`` that the nursery forks."""

    nursery = Nursery()

    def _execute_child(self, args: list[str], *others: Any) -> None:
        # After nine arguments that shape an exec come the pipes: the child's and our end of input, ours and the
        # child's of output and of errors.
        environment = others[5]
        child_ends = (others[9], others[12], others[14])
        files = [end if end != -1 else standard for standard, end in enumerate(child_ends)]
        self.pid = self.nursery.fork(args, environment or dict(os.environ), (files[0], files[1], files[2]))
        self._child_created = True
        for end in child_ends:
            if end != -1:
                os.close(end)


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


def _serve(theirs: socket.socket) -> Callable[[], None] | None:
    """Fork whenever asked; in a new process: what it is to run. ``None`` once nobody asks any more."""
    while True:
        message, files, _, _ = socket.recv_fds(theirs, 1, 3)
        if not message:
            return None
        asked = json.loads(theirs.recv(_LARGEST))
        reading, writing = os.pipe()
        intermediate = os.fork()
        if intermediate == 0:
            between = os.getpid()
            if (child := os.fork()) == 0:
                while os.getppid() == between:
                    time.sleep(0.001)
                return lambda: _become(asked, files)
            os.write(writing, str(child).encode())
            os._exit(0)
        # Once the one between is gone, its child is that of who asked.
        os.waitpid(intermediate, 0)
        theirs.send(os.read(reading, 64))
        for file in (*files, reading, writing):
            os.close(file)


def _become(asked: dict[str, Any], files: list[int]) -> None:
    for standard, file in enumerate(files):
        os.dup2(file, standard)
    os.closerange(3, 4096)
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[:] = asked["path"]
    _python, _m, module, *arguments = asked["command"]
    _show(asked["command"])
    sys.argv = [module, *arguments]
    signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _show(command: list[str]) -> None:
    """Let others see this command line in place of the nursery's own."""
    begin, end = (
        int(field) for field in Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[45:47]
    )
    words = b"\0".join(word.encode() for word in command) + b"\0"
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(begin)
        memory.write(words[: end - begin].ljust(end - begin, b"\0"))


def _main() -> None:
    theirs = socket.socket(fileno=int(sys.argv[1]))
    for module in IMPORTS:
        __import__(module)
    run = _serve(theirs)
    if run is not None:
        run()
        sys.stdout.flush()
        sys.stderr.flush()
        # To take torch down module by module takes a second, and shows nothing.
        os._exit(0)


if __name__ == "__main__":
    _main()
