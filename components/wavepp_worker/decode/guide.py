"""Answers that must match a grammar: which tokens may come next is found out beside the model's steps."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

from wavepp_worker.decode.guide_turns import GuideTurns
from wavepp_worker.errors import WaveppError
from wavepp_worker.liveness.awake_clock import AwakeClock
from wavepp_worker.model.grammar.compiler import GrammarCompiler
from wavepp_worker.model.grammar.grammar import Grammar
from wavepp_worker.model.grammar.judge import GrammarJudge
from wavepp_worker.model.grammar.matcher import GrammarMatcher

THREADS = 2
"""That find out what may come next, while the model computes; one more compiles."""
STACK_BYTES = 64 << 20
"""Of each: more than a grammar was judged with, of which memory is taken as far as it is used."""
MASK_SECONDS = 5.0
"""That it may take to know what may come next, once it is an answer's turn, while the process runs."""
COMPLETE_SECONDS = 0.002
"""To wait for whether an answer is complete with its newest token; as a rule that takes a tenth of it."""
LAST_SECONDS = 0.1
"""The same where its tokens are used up: nobody asks what may come next then, and why it ended hangs on it."""
DIRECT_SECONDS = 0.002
"""A token is taken at once, while all threads wait, if finding it took a thread less: to take it takes no longer."""
SLOW_SECONDS = 0.05
"""Of a thread for a token: answers that take more leave a thread to the others."""
MOST_COMPILED = 16
"""Grammars kept for the next request that has one of them."""


class Guide:
    """One answer's way through its grammar. For one thread, and those of ``Guides`` in turn with it.

    Nothing here takes long: what strangers' grammars may take seconds for is done by those threads.
    """

    def __init__(self, matcher: GrammarMatcher, turns: GuideTurns) -> None:
        self._matcher = matcher
        self._turns = turns
        self._taken = 0.0
        self._last = math.inf
        self._clock: AwakeClock | None = None
        self._complete: Future[bool] | bool = False
        self._next: Future[bytes] | None = None

    def begin(self) -> None:
        """Have it found out what may come next, unless that is under way or known."""
        if self._next is None:
            self._search(None)

    def allowed(self, seconds: float) -> bytes | None:
        """What may come next, as of ``GrammarMatcher.allowed``; None if it is not known yet after so long.

        Empty if nothing can: the answer is complete.

        Raises:
            WaveppError: nothing may though it is not, the token before may not come there, or it takes longer than
                ``MASK_SECONDS`` to find.
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

    def accept(self, token: int) -> None:
        """Take the next token: at once if that is known to be quick, else have it taken.

        Raises:
            WaveppError: it may not come there, if that is known at once; else ``complete`` raises it.
        """
        if self._last < DIRECT_SECONDS:
            self._complete, self._next = self._matcher.accept(token), None
        else:
            self._search(token)

    def complete(self, seconds: float) -> bool:
        """Whether it is known after so long that nothing can follow the token that was taken last.

        Raises:
            WaveppError: it may not come there.
        """
        if isinstance(self._complete, bool):
            return self._complete
        try:
            return self._complete.result(seconds)
        except NotYet:
            return False

    def cancel(self) -> None:
        """Nobody wants the answer any more; idempotent."""
        if self._next is not None:
            self._next.cancel()

    def _search(self, token: int | None) -> None:
        self._clock = None
        complete = Future[bool]()
        if token is not None:
            self._complete = complete
        slow = SLOW_SECONDS < self._last < math.inf
        self._next = self._turns.submit(self._taken, slow, lambda: self._find(token, complete))

    def _find(self, token: int | None, complete: Future[bool]) -> bytes:
        # Begins with the search, and is read by whoever asks for what is found.
        self._clock = clock = AwakeClock()
        if token is not None:
            done = self._take(token, complete)
            self._taken += clock.read()
            if done:
                return b""
        before = time.thread_time()
        try:
            return self._matcher.allowed()
        finally:
            self._last = time.thread_time() - before
            self._taken += self._last

    def _take(self, token: int, complete: Future[bool]) -> bool:
        try:
            done = self._matcher.accept(token, aside=True)
        except Exception as error:
            complete.set_exception(error)
            raise
        complete.set_result(done)
        return done


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
        self.turns = GuideTurns(self._finding, THREADS)

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
