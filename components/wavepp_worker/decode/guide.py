"""Answers that must match a grammar: which tokens may come next is found out beside the model's steps."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

from wavepp_worker.decode.guide_turns import GuideTurns
from wavepp_worker.errors import WaveppError
from wavepp_worker.liveness.awake_clock import AwakeClock
from wavepp_worker.model.grammar import Grammar
from wavepp_worker.model.grammar_compiler import GrammarCompiler
from wavepp_worker.model.grammar_judge import GrammarJudge
from wavepp_worker.model.grammar_matcher import GrammarMatcher

THREADS = 2
"""That find out what may come next, while the model computes; one more compiles."""
STACK_BYTES = 64 << 20
"""Of each: more than a grammar was judged with, of which memory is taken as far as it is used."""
MASK_SECONDS = 5.0
"""That it may take to know what may come next, once it is an answer's turn, while the process runs."""
MOST_COMPILED = 16
"""Grammars kept for the next request that has one of them."""


class Guide:
    """One answer's way through its grammar. For one thread, and those of ``Guides`` in turn with it."""

    def __init__(self, matcher: GrammarMatcher, turns: GuideTurns) -> None:
        self._matcher = matcher
        self._turns = turns
        self._taken = 0.0
        self._clock: AwakeClock | None = None
        self._next: Future[bytes] | None = None

    def begin(self) -> None:
        """Have it found out what may come next, unless that is under way or known."""
        if self._next is None:
            self._clock = None
            self._next = self._turns.submit(self._taken, self._find)

    def allowed(self, seconds: float) -> bytes | None:
        """What may come next, as of ``GrammarMatcher.allowed``; None if it is not known yet after so long.

        Raises:
            WaveppError: nothing may, or it takes longer than ``MASK_SECONDS``.
        """
        assert self._next is not None, "begun before"
        try:
            return self._next.result(seconds)
        except NotYet:
            clock = self._clock
            if clock is None or clock.read() <= MASK_SECONDS:
                return None
        raise WaveppError(
            f"what the answer must match is too complex: its next token took more than {MASK_SECONDS:.0f} s to find"
        )

    def accept(self, token: int) -> bool:
        """Take the next token; whether the answer is complete.

        Raises:
            WaveppError: it may not come next.
        """
        self._next = None
        return self._matcher.accept(token)

    def _find(self) -> bytes:
        # Begins with the search, and is read by whoever asks for what is found.
        self._clock, before = AwakeClock(), time.thread_time()
        try:
            return self._matcher.allowed()
        finally:
            self._taken += time.thread_time() - before


class Guides:
    """Makes guides, each grammar judged before it is compiled here. Thread-safe."""

    def __init__(self, judge: GrammarJudge, compiler: GrammarCompiler) -> None:
        self._judge = judge
        self._compiler = compiler
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, GrammarMatcher] = OrderedDict()
        self._closed = False
        self._threads: _Threads | None = None

    def guide(self, grammar: Grammar) -> Future[Guide]:
        """A guide at the beginning of an answer.

        The future fails with InvalidRequest or RequestFailed, as of ``GrammarJudge.judge``.

        Raises:
            InvalidRequest, RequestFailed: as of ``GrammarJudge.judge``.
        """
        made: Future[Guide] = Future()
        # Whoever does not want it any more does not stop it.
        made.set_running_or_notify_cancel()

        def judged(verdict: Future[bytes]) -> None:
            error = verdict.exception()
            if error is not None:
                made.set_exception(error)
            else:
                self._own_threads().compiling.submit(self._make, grammar, made)

        self._judge.judge(grammar).add_done_callback(judged)
        return made

    def close(self) -> None:
        """Stop; idempotent."""
        self._judge.close()
        with self._lock:
            self._closed, threads = True, self._threads
        if threads is not None:
            threads.stop()

    def _make(self, grammar: Grammar, made: Future[Guide]) -> None:
        try:
            with self._lock:
                matcher = self._compiled.get(grammar)
            if matcher is None:
                matcher = self._compiler.compile(grammar)
            with self._lock:
                self._compiled[grammar] = matcher
                self._compiled.move_to_end(grammar)
                while len(self._compiled) > MOST_COMPILED:
                    self._compiled.popitem(last=False)
                fresh = matcher.fresh()
            made.set_result(Guide(fresh, self._own_threads().turns))
        except Exception as error:
            made.set_exception(error)

    def _own_threads(self) -> _Threads:
        with self._lock:
            if self._threads is None:
                self._threads = _Threads()
                if self._closed:
                    self._threads.stop()
            return self._threads


class _Threads:
    """Those that find out what may come next, and one that compiles: no answer waits for others' grammars."""

    def __init__(self) -> None:
        self.compiling = _deep_threads("grammar", 1)
        self._finding = _deep_threads("guide", THREADS)
        self.turns = GuideTurns(self._finding)

    def stop(self) -> None:
        for threads in (self.compiling, self._finding):
            threads.shutdown(wait=False, cancel_futures=True)
        self.turns.close()


def _deep_threads(name: str, count: int) -> ThreadPoolExecutor:
    threads = ThreadPoolExecutor(count, name)
    all_there = threading.Barrier(count + 1)
    before = threading.stack_size(STACK_BYTES)
    try:
        for _ in range(count):
            threads.submit(all_there.wait)
        all_there.wait()
    finally:
        threading.stack_size(before)
    return threads
