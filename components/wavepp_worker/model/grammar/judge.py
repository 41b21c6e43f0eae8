"""Says of grammars that strangers send whether they can be honoured, without being hurt by them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from wavepp_worker.errors import InvalidRequest, RequestFailed
from wavepp_worker.model.grammar.grammar import Grammar, check_size
from wavepp_worker.model.grammar.judge_process import READY, TAKEN, Verdict, read_message, write_message

JUDGE_SECONDS = 3
"""Of a processor that a grammar may take to compile."""
LONGEST_SECONDS = 12.0
"""That it may take in all, once it has been taken, and until then: on a busy machine it waits for a processor."""
START_SECONDS = 60.0
"""That the process may take to be there: a large tokenizer takes seconds to read on a busy machine."""
WAIT_SECONDS = 60.0
"""That a grammar may wait for others to be judged; one at a time is, most of them in a few milliseconds."""
MOST_VERDICTS = 256
"""That are remembered; each takes up to an eighth of the vocabulary in bytes."""
TRIES = 2
"""To hand a grammar over: the process may have died since it was asked last."""

_ENDS_OF_A_GRAMMAR = (-signal.SIGPROF, -signal.SIGSEGV, -signal.SIGABRT)
"""How a process ends of one: its time is over, its stack or its memory. Others may end it in any other way."""

_TOO_COMPLEX = (
    f"what the answer must match takes more than {JUDGE_SECONDS} s or too much memory to compile; simplify it"
)

logger = logging.getLogger(__name__)


class GrammarJudge:
    """Compiles grammars in a process of its own, which is started for the first one and again if it died.

    Thread-safe.
    """

    def __init__(self, model: Path, vocab_size: int) -> None:
        """Nothing is started yet; arguments as of ``GrammarCompiler``."""
        self._command = [
            *(sys.executable, "-m", "wavepp_worker.model.grammar.judge_process"),
            *(str(model), str(vocab_size), str(JUDGE_SECONDS)),
        ]
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "grammar judge")

    def judge(self, grammar: Grammar) -> Future[bytes]:
        """Tokens that an answer can begin with, as of ``GrammarMatcher.allowed``.

        The future fails with InvalidRequest, which says what is wrong with the grammar, or with RequestFailed where it
        cannot be judged.

        Raises:
            InvalidRequest: the grammar is too long.
            RequestFailed: the judge is closed.
        """
        check_size(grammar)
        key = hashlib.sha256(msgspec.msgpack.encode(grammar)).digest()
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                known: Future[bytes] = Future()
                _settle(known, self._verdicts[key])
                return known
            self._check_open()
            return self._thread.submit(self._first, key, grammar, time.monotonic() + WAIT_SECONDS)

    def close(self) -> None:
        """Stop; idempotent, also if nothing was judged."""
        with self._lock:
            self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _first(self, key: bytes, grammar: Grammar, deadline: float) -> bytes:
        with self._lock:
            verdict = self._verdicts.get(key)
        if verdict is None:
            if time.monotonic() > deadline:
                raise RequestFailed(
                    f"schemas and grammars of others took {WAIT_SECONDS:.0f} s to compile; ask again"
                )
            verdict = self._ask(grammar)
            with self._lock:
                self._verdicts[key] = verdict
                while len(self._verdicts) > MOST_VERDICTS:
                    self._verdicts.popitem(last=False)
        future: Future[bytes] = Future()
        _settle(future, verdict)
        return future.result()

    def _ask(self, grammar: Grammar) -> Verdict:
        try:
            process = self._hand_over(msgspec.msgpack.encode(grammar))
            answer = _answer(process, LONGEST_SECONDS)
        except TimeoutError:
            self._end()
            self._check_open()
            raise RequestFailed(
                f"what the answer must match could not be compiled within {LONGEST_SECONDS:.0f} s, as this machine is "
                "busy; ask again"
            ) from None
        if answer is not None:
            return msgspec.msgpack.decode(answer, type=Verdict)
        self._end()
        self._check_open()
        if process.returncode < 0 and process.returncode not in _ENDS_OF_A_GRAMMAR:
            raise RequestFailed(
                "the process that compiles schemas and grammars was ended by "
                f"signal {-process.returncode}, as when memory runs out; ask again"
            )
        logger.warning("a grammar of %d characters was too complex to be judged", len(grammar.text))
        return Verdict(_TOO_COMPLEX)

    def _hand_over(self, data: bytes) -> subprocess.Popen[bytes]:
        """The process that has taken a grammar.

        Raises:
            RequestFailed: none takes it.
            TimeoutError: that takes too long.
        """
        for _ in range(TRIES):
            process = self._running()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                write_message(process.stdin, data)
                if _answer(process, LONGEST_SECONDS) == TAKEN:
                    return process
            self._end()
        self._check_open()
        raise RequestFailed(
            "the process that compiles schemas and grammars is killed again and again; ask again"
        )

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            self._check_open()
            if self._process is not None:
                return self._process
            process = self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        try:
            ready = _answer(process, START_SECONDS) == READY
        except TimeoutError:
            ready = False
        if not ready:
            self._end()
            raise RequestFailed("the process that compiles schemas and grammars does not start; ask again")
        return process

    def _check_open(self) -> None:
        if self._closed:
            raise RequestFailed("the worker stops; ask again")

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                try:
                    stream.close()
                except BrokenPipeError:
                    continue


def _answer(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """Its next message; None if it dies first.

    Raises:
        TimeoutError: that took longer, and it is killed.
    """
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        assert process.stdout is not None
        message = read_message(process.stdout)
    finally:
        timer.cancel()
    if message is None and late.is_set():
        raise TimeoutError
    return message


def _settle(future: Future[bytes], verdict: Verdict) -> None:
    if verdict.error:
        future.set_exception(InvalidRequest(verdict.error))
    else:
        future.set_result(verdict.allowed)
