"""The process that ``warm_processes`` forks from: ``python -m tests.support.nursery DESCRIPTOR ROOM``."""

from __future__ import annotations

import atexit
import gc
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

from tests.support.warm_processes import LARGEST_MESSAGE, Nursery, WarmPopen, WarmProgram, nursery_ends

IMPORTS = (
    "aiohttp.web",
    "opentelemetry.sdk.trace",
    "uvloop",
    "wavepp_worker.decode.engine",
    "wavepp_worker.handoff.transport",
    "wavepp_worker.model.torch_loader",
    "wavepp_worker.runtime.client.engine",
    "wavepp_worker.runtime.rank.build",
    "wavepp_worker.serve.cli",
    "transformers.models.llama.modeling_llama",
)
"""Nothing of Dynamo, which sets up its log by the environment when it is imported."""
_COMMAND_ENDS, _ENVIRONMENT_ENDS = slice(45, 47), slice(47, 49)
"""Of the fields that follow the name in /proc/PID/stat."""


def _serve(theirs: socket.socket) -> Callable[[], None] | None:
    """Fork whenever asked; in a new process: what it is to run. ``None`` once nobody asks any more."""
    while True:
        message, files, _, _ = socket.recv_fds(theirs, 1, 3)
        if not message:
            return None
        asked = json.loads(theirs.recv(LARGEST_MESSAGE))
        reading, writing = os.pipe()
        # From its birth on it blocks what whoever asked does.
        before = signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
        intermediate = os.fork()
        if intermediate == 0:
            between = os.getpid()
            if os.fork() == 0:
                # Once the one between is gone, its child is that of who asked.
                while os.getppid() == between:
                    time.sleep(0.001)
                _dress(asked, files, writing)
                return lambda: _become(asked)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writing)
        os.waitpid(intermediate, 0)
        # Nothing, if it could not be forked.
        theirs.send(os.read(reading, 64))
        for file in (*files, reading):
            os.close(file)


def _dress(asked: dict[str, Any], files: list[int], writing: int) -> None:
    """Be from outside what was asked for, and then say one's number: whoever asked may look, signal and kill."""
    for standard, file in enumerate(files):
        os.dup2(file, standard)
    os.closerange(3, writing)
    os.closerange(writing + 1, 4096)
    if asked["session"]:
        os.setsid()
    os.chdir(asked["directory"])
    _show(_COMMAND_ENDS, asked["command"])
    _show(_ENVIRONMENT_ENDS, [f"{name}={value}" for name, value in asked["environment"].items()])
    os.write(writing, str(os.getpid()).encode())
    os.close(writing)


def _become(asked: dict[str, Any]) -> None:
    if asked["starts_others"] and (run := _own_nursery()):
        run()
        return
    os.environ.clear()
    os.environ.update(asked["environment"])
    first = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [asked["directory"], *filter(None, first), *asked["path"]]
    _python, _m, module, *arguments = asked["command"]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = [module, *arguments]
    # Run as the main module, it would else be said to be there twice.
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _own_nursery() -> Callable[[], None] | None:
    """Let this process start warm processes; in one that its nursery forks: what that is to run."""
    ours, theirs = nursery_ends()
    if os.fork() == 0:
        ours.close()
        # It is none of the run's processes, which tests count; it ends when the program does.
        _show(_COMMAND_ENDS, ["nursery"])
        _show(_ENVIRONMENT_ENDS, [])
        # Whoever reads to the end of what the others write does not wait for this one.
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        os.close(nothing)
        run = _serve(theirs)
        if run is None:
            os._exit(0)
        return run
    theirs.close()
    WarmPopen.nursery = Nursery(ours)
    subprocess.Popen = WarmProgram  # type: ignore[misc]
    return None


def _show(ends: slice, words: list[str]) -> None:
    """Let others see these words in /proc in place of the nursery's own."""
    begin, end = (int(field) for field in Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[ends])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    if ends == _ENVIRONMENT_ENDS:
        assert len(text) <= end - begin, "a run finds its processes by their environment"
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(begin)
        memory.write(text[: end - begin].ljust(end - begin, b"\0"))


def _main() -> None:
    theirs = socket.socket(fileno=int(sys.argv[1]))
    for module in IMPORTS:
        __import__(module)
    gc.collect()
    gc.freeze()
    run = _serve(theirs)
    if run is not None:
        run()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        # To take torch down module by module takes a second.
        os._exit(0)


if __name__ == "__main__":
    _main()
