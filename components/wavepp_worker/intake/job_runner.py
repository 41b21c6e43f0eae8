"""Runs one delivered job: decides, prefills, answers, and acknowledges it once the answer is there."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress

import msgspec

from wavepp_worker.errors import InvalidRequest, QueueError, RequestAborted, WaveppError, error_text
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.decision import Begin, Drop, GiveUp, decide, superseded, under_way
from wavepp_worker.intake.intake_counts import IntakeCounts
from wavepp_worker.intake.job_ledger import JobLedger, Overtaken
from wavepp_worker.intake.messages import (
    FailureCode,
    Job,
    JobFailure,
    JobResult,
    Running,
    Waiting,
    read_job,
)
from wavepp_worker.intake.names import WILDCARDS, address_of, token_of
from wavepp_worker.intake.prefills import Prefills
from wavepp_worker.intake.streams import QueueStreams
from wavepp_worker.intake.taken_job import (
    TakenJob,
    engine_request,
    fresh_room,
    handoff_address,
    in_senders_words,
    job_timings,
)
from wavepp_worker.model.files.text_tokenizer import TextTokenizer
from wavepp_worker.runtime.protocol.requests import PrefillResult

logger = logging.getLogger(__name__)

FIND_SECONDS = 30.0
"""How long it is tried to find out what became of a job that was delivered, while the server is not reached."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
"""Between attempts: it doubles with each."""
LOOK_SECONDS = 0.1
"""How often a job whose text is made into tokens is looked after."""
SUSPECT_ATTEMPT = 3
"""From this attempt on, or the last if that comes before, a replica runs one such job at a time: one of them may be
what ended the replicas before, and would take the others along until all are given up."""
SUSPECT_PAUSE_SECONDS = 1.0
"""Until such a job comes again that found another one running."""


def pause_seconds(attempt: int) -> float:
    """Until a job begins again, after this attempt failed."""
    # What is doubled much more often is no number any longer.
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(attempt - 1, 32), LONGEST_PAUSE_SECONDS)


class JobRunner:
    """One replica's jobs. For one event loop."""

    def __init__(
        self,
        streams: QueueStreams,
        prefills: Prefills,
        config: IntakeConfig,
        replica: str,
        counts: IntakeCounts,
    ) -> None:
        """``replica``: what states call this one."""
        self._streams = streams
        self._ledger = JobLedger(streams)
        self._prefills = prefills
        self._attempts = config.intake_attempts
        self._replica = replica
        self._counts = counts
        self._tokenizer = TextTokenizer(prefills.engine.config.model, prefills.engine.max_model_len)
        self._texts = asyncio.Lock()
        """Held while one is made into tokens: that takes a core for seconds, and one at a time is as fast."""
        self._suspect = asyncio.Lock()
        # A first attempt is nobody's fault.
        self._suspect_from = max(2, min(SUSPECT_ATTEMPT, config.intake_attempts))

    async def run(self, taken: TakenJob) -> None:
        """Do what there is to do for a job that was delivered. What fails is delivered again."""
        try:
            await self._run(taken)
        except QueueError as error:
            logger.warning("job %s is delivered again: %s", taken.token, error)
            self._counts.ended("undelivered")

    async def refuse(self, subject: str) -> None:
        """Answer a job that no replica can have, as what it addresses could be none's name, and remove it.

        Raises:
            QueueError: the server does not answer.
        """
        job = token_of(subject)
        sentence = (
            f"the job addresses {address_of(subject)!r}; a replica's name is 1 to 64 letters, digits, - and _"
        )
        found = await self._ledger.find(job, FIND_SECONDS)
        if found is None:
            with suppress(Overtaken):
                await self._ledger.write(job, JobFailure(code="invalid", error=sentence), 0)
                self._counts.ended("invalid")
        await self._streams.remove(subject)

    async def _run(self, taken: TakenJob) -> None:
        if taken.token in WILDCARDS:
            # Nobody can be told what became of it: whoever asked would be told of others.
            self._counts.ended("invalid")
            await taken.message.term()
            return
        overtaken = False
        while True:
            found = await self._ledger.find(taken.token, FIND_SECONDS)
            if overtaken and under_way(found, taken.number):
                # By another replica, which acknowledges it: to begin once more would overtake that one in turn.
                self._counts.ended("duplicate")
                return
            other = superseded(found, taken.number)
            there = other is not None and await self._streams.is_message_there(other)
            decision = decide(found, other_is_there=there, most_attempts=self._attempts)
            # If another replica has it now, or had its answer first, that is what is decided on next.
            overtaken = True
            with suppress(Overtaken):
                match decision:
                    case Drop():
                        self._counts.ended("duplicate")
                        await taken.message.ack()
                    case GiveUp():
                        await self._give_up(taken, decision.attempts, decision.reason, decision.replaces)
                    case Begin():
                        taken.forgive(decision.forgiven)
                        await self._begin_apart(taken, decision)
                return

    async def _begin_apart(self, taken: TakenJob, begin: Begin) -> None:
        """Begin a job, or hand it back while another runs that failed as often."""
        if begin.attempt < self._suspect_from:
            await self._begin(taken, begin)
        elif self._suspect.locked():
            await taken.message.nak(delay=SUSPECT_PAUSE_SECONDS)
            self._counts.ended("handed back")
        else:
            async with self._suspect:
                await self._begin(taken, begin)

    async def _begin(self, taken: TakenJob, begin: Begin) -> None:
        try:
            taken.job = job = read_job(taken.message.data, taken.token)
        except InvalidRequest as error:
            await self._fail(taken, "invalid", str(error), begin.attempt - 1, begin.replaces)
            return
        room = fresh_room() if job.handoff else None
        address = None if room is None else handoff_address(self._prefills.address(room))
        # Whoever claims waits for what is prefilled soon, and a text may take long until its tokens are there.
        now = address if job.text is None else None
        running = Running(
            job=taken.number,
            replica=self._replica,
            attempt=begin.attempt,
            handoff=now,
            forgiven=begin.forgiven,
        )
        async with AsyncExitStack() as turn:
            if job.text is not None:
                taken.as_text = True
                # It counts as begun before it can do harm, and those that only wait for it do not.
                await turn.enter_async_context(self._texts)
            if taken.stopped():
                if taken.unwanted is not None:
                    await self._unwanted(taken, begin.attempt - 1, begin.replaces)
                else:
                    await taken.message.nak()
                    self._counts.ended("handed back")
                return
            revision = await self._ledger.write(taken.token, running, begin.replaces)
            try:
                token_ids = await self._token_ids(taken, job)
                taken.as_text = False
                await turn.aclose()
                if address != now:
                    running = msgspec.structs.replace(running, handoff=address)
                    revision = await self._ledger.write(taken.token, running, revision)
                result = await self._prefill(taken, job, token_ids, room)
            except (Overtaken, QueueError):
                raise
            except InvalidRequest as error:
                sentence = in_senders_words(str(error), job)
                await self._fail(taken, "invalid", sentence, begin.attempt, revision)
            except Exception as error:
                if not isinstance(error, WaveppError):
                    logger.exception("job %s failed", taken.token)
                reason = in_senders_words(error_text(error), job)
                await self._after(taken, error, reason, begin.attempt, revision)
            else:
                await self._finish(taken, job, result, running, revision)

    async def _prefill(
        self, taken: TakenJob, job: Job, token_ids: tuple[int, ...] | list[int], room: int | None
    ) -> PrefillResult:
        request = engine_request(job, token_ids)

        def on_admitted() -> None:
            taken.admitted = True

        if room is None:
            return await self._prefills.prefill_alone(request, taken.stopped, on_admitted)
        return await self._prefills.prefill(request, room, taken.stopped, on_admitted)

    async def _finish(
        self, taken: TakenJob, job: Job, result: PrefillResult, running: Running, revision: int
    ) -> None:
        answer = JobResult(
            id=job.id,
            digest=job.digest,
            replica=self._replica,
            attempt=running.attempt,
            first_token=result.first_token,
            logprob=result.logprob,
            top_logprobs=result.top_logprobs,
            prompt_tokens=result.prompt_tokens,
            reused_tokens=result.reused_tokens,
            timings=job_timings(result.timings),
            handoff=running.handoff,
        )
        await self._answer(taken, answer, revision)
        self._counts.ended("finished")
        await taken.message.ack()

    async def _answer(self, taken: TakenJob, answer: JobResult, revision: int) -> None:
        """Write an answer, also where another replica has begun the job meanwhile: who is done first has answered.

        Raises:
            Overtaken: it is answered already, or begun by another message.
        """
        while True:
            try:
                await self._ledger.write(taken.token, answer, revision)
                return
            except Overtaken:
                found = await self._ledger.find(taken.token, FIND_SECONDS)
                if found is None or not under_way(found, taken.number):
                    raise
                revision = found.revision

    async def _after(
        self, taken: TakenJob, error: Exception, reason: str, attempt: int, revision: int
    ) -> None:
        """An attempt ended without an answer: ``reason`` says why, to the sender."""
        if taken.unwanted is not None and isinstance(error, RequestAborted):
            await self._unwanted(taken, attempt, revision)
        elif taken.handing_back:
            # Not the job's fault, so it does not count.
            await self._again(taken, attempt - 1, "its replica was told to stop", revision, None)
            self._counts.ended("handed back")
        elif attempt >= self._attempts:
            await self._give_up(taken, attempt, reason, revision)
        else:
            pause = pause_seconds(attempt)
            await self._again(taken, attempt, reason, revision, pause)
            self._counts.ended("tried again")

    async def _again(
        self, taken: TakenJob, attempts: int, error: str, revision: int, pause: float | None
    ) -> None:
        state = Waiting(job=taken.number, attempts=attempts, error=error, forgiven=taken.forgiven)
        await self._ledger.write(taken.token, state, revision)
        await taken.message.nak(delay=pause)

    async def _unwanted(self, taken: TakenJob, attempts: int, revision: int) -> None:
        assert taken.unwanted is not None
        assert taken.job is not None
        why = {
            "deadline": f"its deadline_seconds={taken.job.deadline_seconds} were over",
            "cancelled": "its sender cancelled it",
        }
        sentence = f"job {taken.job.id} was not answered, as {why.get(taken.unwanted, taken.unwanted)}"
        await self._fail(taken, taken.unwanted, sentence, attempts, revision)

    async def _give_up(self, taken: TakenJob, attempts: int, reason: str, revision: int) -> None:
        cut = await self._streams.bury(
            taken.token,
            taken.message.data,
            reason,
            **{"Wavepp-Attempts": str(attempts), "Nats-Msg-Id": f"{taken.token}.{taken.number}"},
        )
        without = f", without its last {cut} bytes (max_payload)" if cut else ""
        sentence = (
            f"the job was given up after {attempts} attempts (--intake-attempts) and is kept among the dead "
            f"jobs{without}; the last time: {reason}"
        )
        await self._fail(taken, "failed", sentence, attempts, revision)

    async def _fail(
        self, taken: TakenJob, code: FailureCode, sentence: str, attempts: int, revision: int
    ) -> None:
        digest = taken.job.digest if taken.job is not None else None
        answer = JobFailure(code=code, error=sentence, digest=digest, attempts=attempts)
        await self._ledger.write(taken.token, answer, revision)
        self._counts.ended(code)
        await taken.message.term()

    async def _token_ids(self, taken: TakenJob, job: Job) -> tuple[int, ...] | list[int]:
        """The prompt's; of a text, made in a thread.

        Raises:
            InvalidRequest: as of ``TextTokenizer.ids``.
            RequestAborted: this replica stops before they are made; the thread goes on, for nobody.
        """
        if job.text is None:
            assert job.token_ids is not None
            return job.token_ids
        making = asyncio.get_running_loop().run_in_executor(None, self._tokenizer.ids, job.text)
        while not (await asyncio.wait([making], timeout=LOOK_SECONDS))[0]:
            if taken.handing_back:
                raise RequestAborted(f"job {job.id} is handed back, as its replica stops")
        return making.result()
