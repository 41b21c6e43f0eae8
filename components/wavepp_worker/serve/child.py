"""One running process: in a session of its own, its output line by line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from wavepp_worker.serve.orphans import collect

_LAST_LINES = 20
_LONGEST_LINE = 16384


class Child:
    """A process and its last words. Made by ``start``."""

    def __init__(
        self, process: asyncio.subprocess.Process, output: asyncio.Task[None], last: deque[str]
    ) -> None:
        self._process = process
        self._output = output
        self.last_lines = last
        """The last 20 lines it wrote."""

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        *,
        talks: bool = False,
    ) -> Child:
        """Start it; ``on_line`` gets each line of its output and errors, from the event loop.

        Args:
            talks: it reads what ``tell`` is given; else it has nothing to read.

        Raises:
            OSError: it cannot be executed.
        """
        # A pipe of our own, as asyncio's waits for all holders of it before it tells of the process's end.
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(environment),
                stdin=asyncio.subprocess.PIPE if talks else asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        last: deque[str] = deque(maxlen=_LAST_LINES)

        def note(line: str) -> None:
            if line.strip():
                last.append(line)
                on_line(line)

        return cls(process, asyncio.create_task(_pump(reading, note)), last)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> int:
        """Its exit code, negative for a signal, as soon as there is one; to be followed by ``wait``."""
        return await self._process.wait()

    async def wait(self) -> int:
        """As ``ended``; then its process group is gone and its output read."""
        code = await self._process.wait()
        self.signal_group(signal.SIGKILL)
        await asyncio.to_thread(collect, self.pid)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._output, timeout=0.5)
        return code

    def tell(self, text: str) -> None:
        """Write to its standard input, if it talks; what it does not read any more is lost."""
        if self._process.stdin is not None and self._process.returncode is None:
            self._process.stdin.write(text.encode())

    def terminate(self) -> None:
        """Ask it, not its children, to leave; those are its to stop in order."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """End it and its process group at once."""
        self.signal_group(signal.SIGKILL)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal it and all its children that have not left its session's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


async def _pump(reading: int, on_line: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", buffering=0)
    )
    rest = b""
    try:
        while data := await reader.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                on_line(_text(line))
            if len(rest) > _LONGEST_LINE:
                on_line(_text(rest))
                rest = b""
        if rest:
            on_line(_text(rest))
    finally:
        transport.close()


def _text(line: bytes) -> str:
    # What a progress bar drew over stays out: the last state of the line is what counts.
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
