"""The process in which grammars that strangers sent are compiled for the first time: ``GrammarJudge`` starts it.

It may die of one: compiling is recursive and can take much memory. Messages are lengths of four bytes, each with that
many bytes of msgpack: ``Grammar`` in, ``TAKEN`` and ``Verdict`` out. The first one out is ``READY``.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO

import msgspec

from wavepp_worker.errors import WaveppError
from wavepp_worker.model.grammar.compiler import GrammarCompiler
from wavepp_worker.model.grammar.grammar import Grammar

STACK_BYTES = 4 << 20
"""Of the thread that compiles here: less than of those that compile what has been found good."""
MEMORY_BYTES = 256 << 20
"""That one grammar may take."""
MASK_CPU_SECONDS = 0.25
"""That a grammar may take to say what an answer begins with: about as long it would take for every token."""


READY = b"ready"
TAKEN = b"taken"
"""What comes before a verdict: who dies without it did not die of the grammar."""


class Verdict(msgspec.Struct, frozen=True):
    """What is to be thought of a grammar.

    Attributes:
        error: why it is refused, a sentence; empty if it is not.
        allowed: tokens that an answer can begin with, as of ``GrammarMatcher.allowed``.
    """

    error: str = ""
    allowed: bytes = b""


def read_message(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    data = stream.read(int.from_bytes(head, "little"))
    return data if len(data) == int.from_bytes(head, "little") else None


def write_message(stream: IO[bytes], data: bytes) -> None:
    """Send a message."""
    stream.write(len(data).to_bytes(4, "little") + data)
    stream.flush()


def judge(compiler: GrammarCompiler, grammar: Grammar) -> Verdict:
    """What is to be thought of one grammar."""
    try:
        matcher = compiler.compile(grammar)
        begun = time.thread_time()
        allowed = matcher.allowed()
        if time.thread_time() - begun > MASK_CPU_SECONDS:
            return Verdict(
                "what the answer must match is too complex to be followed token by token; simplify it"
            )
        return Verdict(allowed=allowed)
    except WaveppError as error:
        return Verdict(str(error))


def _serve(compiler: GrammarCompiler, seconds: float) -> None:
    with contextlib.suppress(WaveppError):
        # Else every grammar is told what is wrong with the tokenizer.
        compiler.load()
    write_message(sys.stdout.buffer, READY)
    held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY_BYTES, held + MEMORY_BYTES))
    while (data := read_message(sys.stdin.buffer)) is not None:
        write_message(sys.stdout.buffer, TAKEN)
        # Time of a processor: nobody else's work is held against a grammar.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        verdict = judge(compiler, msgspec.msgpack.decode(data, type=Grammar))
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_message(sys.stdout.buffer, msgspec.msgpack.encode(verdict))


def main() -> None:
    """``model directory, vocabulary size, seconds of a processor for one grammar``."""
    model, vocab_size, seconds = sys.argv[1:]
    # Whoever started it says when it ends, by closing its standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    compiler = GrammarCompiler(Path(model), int(vocab_size))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(compiler, float(seconds)), daemon=True)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
