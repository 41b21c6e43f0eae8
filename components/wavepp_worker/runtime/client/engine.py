"""The prefill engine: the client of one replica's ranks, for offline use and for the Dynamo worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from wavepp_worker import token_ids
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.errors import ConfigError, EngineDead, HandoffError, RequestAborted
from wavepp_worker.handoff.offer import Offer
from wavepp_worker.model.lora import read_adapters
from wavepp_worker.model.model_info import ModelInfo, read_model_info
from wavepp_worker.model.model_shape import read_model_shape
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.runtime.client.auditor import Auditor
from wavepp_worker.runtime.client.description import engine_description
from wavepp_worker.runtime.client.engine_state import EngineState
from wavepp_worker.runtime.client.inquiry import ANSWER_SECONDS, Inquiry
from wavepp_worker.runtime.client.kv_budget import with_pools
from wavepp_worker.runtime.client.kv_pools import longest_prompt, pool_blocks
from wavepp_worker.runtime.client.profiler import Profiler
from wavepp_worker.runtime.client.rank_events import RankEvents, Replies
from wavepp_worker.runtime.client.rank_link import RankLink
from wavepp_worker.runtime.client.request_maker import Prompt, RequestMaker
from wavepp_worker.runtime.client.state_dump import state_dump
from wavepp_worker.runtime.client.stats import engine_stats
from wavepp_worker.runtime.protocol.commands import Clear, Dump, Submit
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.index_delta import IndexDelta
from wavepp_worker.runtime.protocol.load import EngineStats, PrefillPass
from wavepp_worker.runtime.protocol.rank_state import MOST_REQUESTS
from wavepp_worker.runtime.protocol.requests import HandedOff, PrefillResult
from wavepp_worker.runtime.protocol.whereabouts import Whereabouts
from wavepp_worker.worker_description import EngineDescription

CLEAR_SECONDS = 30.0
"""How long all ranks may take to forget what nobody holds: a round may wait for a step of a slow rank."""


class PrefillEngine:
    """One WavePP replica: ``pp`` rank processes, each with its own layers and its own cache.

    Use it as a context manager, or call ``start`` and ``close``. All methods are thread-safe. Callbacks come
    from the engine's own threads and must not block.

    Attributes:
        config: the configuration it was made with.
        info: what is known of the model.
        adapters: LoRA adapters that requests may choose, by name.
        max_model_len: most tokens of a prompt.
        total_blocks: KV blocks of the smallest rank.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_index: Callable[[IndexDelta], None] | None = None,
        on_death: Callable[[str], None] | None = None,
        on_handed_off: Callable[[HandedOff], None] | None = None,
        on_pass: Callable[[PrefillPass], None] | None = None,
    ) -> None:
        """Check the configuration against the model; nothing is started yet.

        Args:
            config: the replica's configuration.
            on_index: told what became reusable on all ranks, or stopped being so on the first.
            on_death: told, once, why the engine died.
            on_handed_off: told when no rank holds the KV of an answered request any more.
            on_pass: told of every wave that has passed the pipeline.

        Raises:
            ConfigError: the configuration cannot work; the message names the key.
        """
        if not isinstance(config, EngineConfig):
            raise ConfigError(
                f"config is {config!r}; give an EngineConfig, such as EngineConfig(model={config!r})"
            )
        self.info: ModelInfo = read_model_info(config.model)
        if config.kv_memory_fraction is not None:
            config = with_pools(config, replace(read_model_shape(config.model), caches=self.info.caches))
        self.config = config
        self.adapters = read_adapters(config.lora_modules)
        self.max_model_len = longest_prompt(config, self.info.context_length)
        self.total_blocks = min(pool_blocks(config))
        self._state = EngineState(config.pp, on_death)
        self._replies = Replies(self._state, config.pp)
        self._profiler = Profiler(config.pp, self._replies.profiles, always_on=config.timeline is not None)
        self._inquiry = Inquiry(self._state, config.pp)
        self._events = RankEvents(
            config, self.info, self._state, self._replies, self._inquiry, on_index, on_handed_off, on_pass
        )
        self._auditor = Auditor(self._state, config.pp, self._replies.audits, self._events.index_size)
        self._requests = RequestMaker(config, self.max_model_len, self.info.vocab_size, self.adapters)

    def __enter__(self) -> PrefillEngine:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Started, not closed, and every rank lives."""
        return self._state.alive

    @property
    def rank_pids(self) -> list[int]:
        """Process ids of the ranks, in rank order."""
        return self._state.link.processes.pids if self._state.link is not None else []

    def start(self) -> None:
        """Spawn the ranks and wait until all have loaded their layers and connected; idempotent.

        Raises:
            ConfigError: the partition, the device or the hand-off cannot work.
            EngineDead: a rank failed to start, or took longer than ``start_timeout``, or the engine is closed.
        """
        state, limit = self._state, self.config.start_timeout
        try:
            state.connect(lambda: RankLink(self.config, self.info, self._events))
            if not state.started.wait(limit):
                raise EngineDead(
                    f"ranks {state.roster.missing()} were not ready after start_timeout={limit:.0f} s"
                )
            if state.death is not None:
                raise state.death
            if not state.alive:
                raise EngineDead("the engine was closed while it started; make a new one")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the ranks and fail whatever is in flight; idempotent, and bounded in time."""
        self._profiler.close()
        self._state.close()

    def prefill(
        self,
        prompt: Prompt,
        *,
        sampling: SamplingParams | None = None,
        top_logprobs: int | None = None,
        salt: str = "",
    ) -> PrefillResult:
        """Prefill one prompt and wait for its first token; whoever interrupts that aborts the request.

        Args:
            prompt, sampling, top_logprobs, salt: as for ``submit``.

        Raises:
            InvalidRequest: the prompt or a parameter is out of range.
            RequestFailed: a rank could not sample its first token.
            RequestTimeout: not finished within ``request_timeout``.
            EngineDead: a rank died, or the engine is not running.

        >>> result = engine.prefill([1, 2, 3], top_logprobs=2)
        >>> result.top_logprobs[0] == (result.first_token, result.logprob)
        True
        >>> engine.prefill("Why is the sky blue?").prompt_tokens > 3
        True
        >>> engine.prefill([])
        Traceback (most recent call last):
        wavepp_worker.errors.InvalidRequest: the prompt is empty; give at least one token
        """
        request = self._requests.request(prompt, sampling, top_logprobs, salt)
        future = self.submit(request)
        try:
            return future.result()
        except (KeyboardInterrupt, SystemExit):
            self.abort(request.request_id)
            raise

    async def aprefill(
        self,
        prompt: Prompt,
        *,
        sampling: SamplingParams | None = None,
        top_logprobs: int | None = None,
        salt: str = "",
    ) -> PrefillResult:
        """As ``prefill``, for asyncio; cancelling it aborts the request.

        >>> import asyncio
        >>> async def both():
        ...     return await asyncio.gather(engine.aprefill([1, 2, 3]), engine.aprefill([4, 5]))
        >>> [result.prompt_tokens for result in asyncio.run(both())]
        [3, 2]
        """
        # In a thread, as making tokens of a long text takes a while; nothing is queued yet.
        request = await asyncio.to_thread(self._requests.request, prompt, sampling, top_logprobs, salt)
        future = self.submit(request)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.abort(request.request_id)
            raise

    def submit(
        self,
        prompt: Prompt,
        on_admitted: Callable[[], None] | None = None,
        *,
        sampling: SamplingParams | None = None,
        top_logprobs: int | None = None,
        salt: str = "",
    ) -> Future[PrefillResult]:
        """Queue one prompt.

        The future fails with RequestAborted, RequestFailed, RequestTimeout, HandoffError or EngineDead.

        Args:
            prompt: token ids, text for the model's own tokenizer (no chat template), or a request, which has an id to
                abort it by and says the rest itself.
            on_admitted: called from the engine's thread once all ranks hold room for the request. Offering
                it to a decode worker earlier could pin decode blocks for a prefill that waits for room.
            sampling: how the first token is chosen; greedy by default.
            top_logprobs: how many alternatives to report; its own logprob always is.
            salt: requests share KV only under equal salts.

        Raises:
            InvalidRequest: the request is wrong, or its id is in use; nothing was queued.
            EngineDead: the engine is not running.

        >>> futures = [engine.submit([7] * 40), engine.submit([7] * 40, salt="another tenant")]
        >>> [future.result().prompt_tokens for future in futures]
        [40, 40]
        """
        request = self._requests.accepted(self._requests.request(prompt, sampling, top_logprobs, salt))
        with self._state.lock:
            link = self._state.running_link()
        # Once, here, and not on every rank; outside the lock, as a long prompt takes a while.
        keys = link.keys.keys(request.tokens, request.salt, self._adapter_key(request.lora))
        now = time.monotonic()
        with self._state.lock:
            link = self._state.running_link()
            live = self._state.ledger.accept(request, now, now + self.config.request_timeout, on_admitted)
            link.send(Submit(request=live.request, keys=keys))
        return live.future

    def abort(self, request_id: str) -> None:
        """Let go of a request in whatever state it is; unknown ids are ignored."""
        self._state.abort(request_id, _aborted(request_id))

    def offer(self, request_id: str) -> Offer:
        """Where a decode worker finds the KV of a live request submitted with ``handoff``.

        Raises:
            HandoffError: no such request, or this engine hands nothing off.
        """
        with self._state.lock:
            live = self._state.ledger.get(request_id)
            addresses = self._state.roster.handoff_addresses()
        if live is None or live.request.secret is None:
            raise HandoffError(f"request {request_id} is not live or was submitted without handoff")
        if len(addresses) != self.config.pp:
            raise HandoffError(f"this engine hands nothing off (handoff={self.config.handoff})")
        return Offer(
            request_id=live.request.request_id,
            secret=live.request.secret,
            prompt_tokens=live.request.prompt_tokens,
            model_id=self.info.model_id,
            ranks=addresses,
            adapter=self._adapter_key(live.request.lora),
        )

    def _adapter_key(self, name: str) -> str:
        return self.adapters[name].key if name in self.adapters else name

    def withdraw(self, offer: Offer) -> None:
        """Let go of the request that ``offer`` is of, as nobody comes for its KV; ignored if it is over."""
        self._state.withdraw(offer.request_id, _aborted)

    def idle(self) -> bool:
        """Whether no request is queued, running, or held for a decode worker."""
        with self._state.lock:
            return self._state.ledger.unanswered() + self._state.ledger.holding() == 0

    def reusable_tokens(self, tokens: bytes, salt: str = "", lora: str = "") -> int:
        """Tokens a prompt begins with whose KV all ranks hold, as far as they have said; more or less when it runs.

        Args:
            tokens: packed token ids.
            salt, lora: of the request.

        Raises:
            EngineDead: the engine is not running.
        """
        with self._state.lock:
            link = self._state.running_link()
        # A prompt's last token is always computed.
        keys = BlockKeys(
            link.keys.keys(
                token_ids.part(tokens, 0, token_ids.count(tokens) - 1), salt, self._adapter_key(lora)
            )
        )
        return self._events.leading(keys) * self.config.block_size

    def stats(self) -> EngineStats:
        """Load as of the ranks' last heartbeats (twice a second), and totals since the start."""
        with self._state.lock:
            return self._stats()

    def _stats(self) -> EngineStats:
        return engine_stats(self._state.ledger, self._state.roster.beats(), self.total_blocks)

    def describe(self) -> EngineDescription:
        """What the ranks compute and hold.

        Raises:
            EngineDead: the engine hands nothing off, or its ranks are not ready.
        """
        with self._state.lock:
            addresses = self._state.roster.handoff_addresses()
        return engine_description(self.config, addresses, self.rank_pids)

    def why(self, request_id: str | None = None) -> list[Whereabouts]:
        """Why requests are not finished yet: where each of them is; costs nothing but when it is called.

        Args:
            request_id: of one request; without, those that were submitted first and are not over, at most 20.

        Returns:
            Nothing of a request that is over, or never was here. One that is prefilled for a job of a queue, or anew,
            counts as the one that its id begins with.

        Raises:
            EngineDead: the engine is not running.

        >>> engine.why("never submitted")
        []
        """
        return self._inquiry.ask(request_id)

    def clear(self) -> dict[str, Any]:
        """Forget all KV that can be reused and that no request holds, on every tier of every rank, in one round.

        Requests go on undisturbed: what they hold stays, and can be reused by others. What is forgotten on disk is not
        found after a restart either. When this returns, ``on_index`` has been told.

        Returns:
            ``{"ranks": [{"rank", "device", "host", "disk", "held"}, …]}``: blocks that were forgotten, by tier, and
            that requests hold.

        Raises:
            RequestTimeout: some rank has not done it in ``CLEAR_SECONDS``; it will once its round is over.
            EngineDead: the engine is not running.

        >>> engine.prefill([5] * 40).reused_tokens
        0
        >>> sorted(engine.clear()["ranks"][0])
        ['device', 'disk', 'held', 'host', 'rank']
        >>> engine.prefill([5] * 40).reused_tokens
        0
        """
        cleared = self._replies.clears.gather_all(lambda number: Clear(clear_id=number), CLEAR_SECONDS)
        return {
            "ranks": [
                {
                    "rank": each.rank,
                    **dict(zip(("device", "host", "disk"), each.forgotten, strict=True)),
                    "held": each.held,
                }
                for each in cleared
            ]
        }

    def start_profile(self, path: Path | None, seconds: float) -> Path:
        """Have all ranks record what they do, for so many seconds at most; see ``Profiler.start``."""
        return self._profiler.start(path, seconds)

    def stop_profile(self) -> dict[str, Any]:
        """End the profile and write its file, a timeline for ui.perfetto.dev; see ``Profiler.stop``.

        >>> import tempfile
        >>> from pathlib import Path
        >>> path = engine.start_profile(Path(tempfile.mkdtemp()) / "profile.json", 60)
        >>> engine.prefill([6] * 40).prompt_tokens
        40
        >>> profile = engine.stop_profile()
        >>> profile["path"] == str(path), profile["slices"] > 3
        (True, True)
        """
        return self._profiler.stop()

    def dump_state(self) -> dict[str, Any]:
        """What the engine and its ranks hold and do, for people who look for a fault; at most some hundred KB of JSON.

        There is no prompt in it, and of each rank no more than the first 64 requests. Ranks that say nothing within
        2 s are in ``silent_ranks``; what is known without them is there all the same.

        Raises:
            EngineDead: the engine is not running.

        >>> state = engine.dump_state()
        >>> len(state["ranks"]) == len(engine.rank_pids), state["silent_ranks"]
        (True, [])
        """
        found, heard = self._inquiry.survey(MOST_REQUESTS)
        states = self._replies.dumps.gather(lambda number: Dump(dump_id=number), ANSWER_SECONDS)
        with self._state.lock:
            ledger = self._state.ledger
            live, name = len(ledger.names()), ledger.name
            return state_dump(self._stats(), live, found, heard, states, self.config.pp, name)

    def audit(self, timeout: float = 30.0) -> dict[str, Any]:
        """Prove that nothing leaked: wait until nothing is in flight, then check every rank's books.

        Returns:
            ``{"ranks": [{"rank", "capacity", "free", "reusable"}, …], "on_all_ranks"}``, blocks: of each rank on the
            device, and those that every rank can reuse, on any tier: what ``on_index`` was told and not told back.

        Raises:
            AuditError: a rank's books are broken, or after ``timeout`` seconds something is still held or the index
                differs from what the ranks can reuse.
            EngineDead: the engine is not running.
        """
        return self._auditor.until_at_rest(timeout)


def _aborted(name: str) -> RequestAborted:
    return RequestAborted(f"request {name} was aborted by its caller")
