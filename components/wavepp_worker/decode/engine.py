"""The decode engine: the whole model, continuing prompts whose KV prefill workers hand over."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import torch

from wavepp_worker.decode.batch import Batch
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.decoding_request import DecodingRequest, OnOutput
from wavepp_worker.decode.engine_io import DecodeRequest, DecodeStats, DecodeStep
from wavepp_worker.decode.guide import Guides
from wavepp_worker.decode.kv_arrivals import KvArrivals
from wavepp_worker.decode.kv_budget import with_pool
from wavepp_worker.decode.longest_request import longest_request, pool_tokens
from wavepp_worker.decode.scheduler import Scheduler
from wavepp_worker.decode.step_loop import StepLoop
from wavepp_worker.decode.whereabouts import Whereabouts
from wavepp_worker.errors import ConfigError, EngineDead, InvalidRequest
from wavepp_worker.handoff.decode.receiver import KVReceiver
from wavepp_worker.liveness.step_bound import StepBound
from wavepp_worker.liveness.watchdog import Watchdog
from wavepp_worker.model.grammar.compiler import GrammarCompiler
from wavepp_worker.model.grammar.judge import GrammarJudge
from wavepp_worker.model.lora import read_adapters
from wavepp_worker.model.model_info import ModelInfo, read_model_info
from wavepp_worker.model.model_shape import read_model_shape
from wavepp_worker.model.sampling_params import check_sampling, resolve_seed
from wavepp_worker.model.stage import PagedKV, StageModel
from wavepp_worker.model.stage_loader import load_stage, resolve_dtype
from wavepp_worker.request_checks import check_banned, check_lora, check_prompt
from wavepp_worker.worker_description import EngineDescription, RankDescription

CLOSE_SECONDS = 10.0
FIRST_STEP_SECONDS = 300.0
MOST_TOLD = 20
"""Requests, where it is asked of all."""
"""That the first step may take, if not ``wave_timeout`` is more: weights may have to be read, kernels compiled."""


class DecodeEngine:
    """Continuous batching over KV that arrives by hand-off; two threads, *KV arrivals* and *step loop*.

    Use it as a context manager, or call ``start`` and ``close``. All methods are thread-safe. Callbacks come
    from the engine's own threads, for one request never two at a time, and must not block.
    """

    def __init__(
        self,
        config: DecodeConfig,
        on_death: Callable[[str], None] | None = None,
        on_step: Callable[[DecodeStep], None] | None = None,
    ) -> None:
        """Check the configuration against the model; nothing is loaded yet.

        Args:
            config: the worker's configuration.
            on_death: told, once, why the engine died.
            on_step: told of every forward pass.

        Raises:
            ConfigError: the configuration cannot work; the message names the key.
        """
        self.info: ModelInfo = read_model_info(config.model)
        self.adapters = read_adapters(config.lora_modules)
        if config.kv_memory_fraction is not None:
            config = with_pool(config, replace(read_model_shape(config.model), caches=self.info.caches))
        self.config = config
        self.max_model_len = longest_request(config, self.info.context_length)
        self.total_blocks = pool_tokens(config) // config.block_size
        self._on_death = on_death
        self._on_step = on_step
        self._scheduler = Scheduler(Batch(self.total_blocks, config.max_num_seqs), config.block_size)
        self._guides = Guides(
            GrammarJudge(config.model, self.info.vocab_size),
            GrammarCompiler(config.model, self.info.vocab_size),
        )
        self._lock = threading.Lock()
        self._closing = False
        self._started = False
        self._description: EngineDescription | None = None
        self._death: str | None = None
        self._arrivals: KvArrivals | None = None
        self._loop: StepLoop | None = None
        self._thread: threading.Thread | None = None
        self._watchdog = Watchdog(self._die)

    def __enter__(self) -> DecodeEngine:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Started, not closed, and not dead."""
        return self._started and self._death is None and not self._closing

    def start(self) -> None:
        """Load the model, allocate the pool and start the threads.

        Raises:
            ConfigError: the model cannot be loaded, or the pool does not fit; the message names the key.
        """
        try:
            stage, kv = self._load()
            self._description = EngineDescription(
                role="decode",
                dtype=str(stage.dtype).removeprefix("torch."),
                device=self.config.device,
                ranks=(
                    RankDescription(
                        layers=stage.num_layers,
                        kv_tokens=self.total_blocks * self.config.block_size,
                        bytes_per_token=kv.bytes_per_token,
                        states=kv.states.num_blocks if kv.states is not None else 0,
                        state_bytes=kv.states.block_bytes if kv.states is not None else 0,
                    ),
                ),
            )
            self._loop = StepLoop(
                stage,
                kv,
                self._scheduler,
                self.config.request_timeout,
                self._watchdog.watch("step loop"),
                StepBound(self.config.wave_timeout, FIRST_STEP_SECONDS),
                self._on_step,
            )
            self._arrivals = KvArrivals(
                KVReceiver(kv, stage.num_layers, stage.kv_dtype, self.info.model_id, self.config.host),
                self._scheduler,
                self._guides,
                adapters=self.adapters,
                vocab_size=self.info.vocab_size,
                timeout=min(self.config.handoff_timeout, self.config.request_timeout),
                on_failure=self._die,
                watched=self._watchdog.watch("KV arrivals"),
                turn_seconds=self.config.wave_timeout,
            )
            self._arrivals.start()
            self._thread = threading.Thread(
                target=self._run, args=(self._loop,), name="step loop", daemon=True
            )
            self._thread.start()
            self._watchdog.start()
            self._started = True
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Fail whatever is in flight and stop the threads; idempotent, and bounded in time."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._watchdog.close()
        self._scheduler.close(EngineDead("the engine was closed while the request was in flight"))
        if self._arrivals is not None:
            self._arrivals.close(CLOSE_SECONDS)
        self._guides.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def submit(self, request: DecodeRequest, on_output: OnOutput) -> None:
        """Continue a prompt: receive its KV and first token, then generate.

        ``on_output`` gets every output of the request; exactly one has a finish reason, the last.

        Raises:
            InvalidRequest: the request is wrong, or its id is in use; ``on_output`` is never called.
            EngineDead: the engine is not running.
        """
        request = self._validated(request)
        decoding = DecodingRequest(request, on_output, time.monotonic() + self.config.request_timeout)
        if not self.alive or self._arrivals is None:
            raise EngineDead(self._death or "the engine is not running; call start() first")
        self._scheduler.add(decoding)
        self._arrivals.submit(decoding)

    def abort(self, request_id: str) -> None:
        """Let go of a request in whatever state it is; it ends as ``cancelled``. Unknown ids are ignored."""
        self._scheduler.abort(request_id)
        if self._arrivals is not None:
            self._arrivals.cancel(request_id)

    def why(self, request_id: str | None = None) -> list[Whereabouts]:
        """Why requests are not finished yet: where one of them is, or the first 20 that are live; nothing of others."""
        return self._scheduler.whereabouts(request_id, MOST_TOLD)

    def describe(self) -> EngineDescription:
        """What the engine computes and holds.

        Raises:
            EngineDead: it was not started.
        """
        if self._description is None:
            raise EngineDead("the engine is not running; call start() first")
        return self._description

    def audit(self, timeout: float = 30.0) -> dict[str, Any]:
        """Prove that nothing leaked: wait until nothing is in flight, then check the books.

        Returns:
            ``{"capacity", "free"}``, in blocks.

        Raises:
            AuditError: the books are broken, or something is still held after ``timeout`` seconds.
            EngineDead: the engine is not running.
        """
        if not self.alive:
            raise EngineDead(self._death or "the engine is not running")
        self._scheduler.check_at_rest(timeout)
        counts = self._scheduler.counts()
        return {"capacity": self.total_blocks, "free": self.total_blocks - counts["used_blocks"]}

    def stats(self) -> DecodeStats:
        """Load at this instant, and totals since the start."""
        loop, arrivals = self._loop, self._arrivals
        return DecodeStats(
            **self._scheduler.counts(),
            prompt_tokens_computed=loop.prompt_tokens_computed if loop is not None else 0,
            kv_bytes_received=arrivals.bytes_received if arrivals is not None else 0,
            tokens_generated=self._scheduler.tokens_generated,
            steps=loop.steps if loop is not None else 0,
            preemptions=self._scheduler.preemptions,
        )

    def _load(self) -> tuple[StageModel, PagedKV]:
        config = self.config
        dtype = resolve_dtype(config.dtype, self.info, config.device)
        stage = load_stage(
            config.model,
            range(self.info.num_layers),
            dtype,
            config.device,
            list(self.adapters.values()),
            config.kv_dtype,
        )
        try:
            return stage, stage.make_kv(self.total_blocks, config.block_size, config.max_num_seqs)
        except RuntimeError as error:
            raise ConfigError(
                f"kv_tokens is {pool_tokens(config)}, but {config.device} has no room for so many "
                f"({str(error).splitlines()[0]}); lower kv_tokens"
            ) from error

    def _validated(self, request: DecodeRequest) -> DecodeRequest:
        """The request with its seed drawn and ``max_tokens`` cut to what the context leaves."""
        check_prompt(request.tokens, self.max_model_len, self.info.vocab_size)
        if request.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is {request.max_tokens}, but must be at least 1")
        if not 0 <= request.min_tokens <= request.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {request.min_tokens}, but must be from 0 to max_tokens={request.max_tokens}"
            )
        check_lora(request.lora, self.adapters)
        check_sampling(request.sampling, self.config.top_logprobs)
        if request.min_tokens:
            check_banned(request.stop_token_ids, self.info.vocab_size)
        return msgspec.structs.replace(
            request,
            sampling=resolve_seed(request.sampling),
            max_tokens=min(request.max_tokens, max(1, self.max_model_len - request.prompt_tokens)),
        )

    def _run(self, loop: StepLoop) -> None:
        torch.set_num_threads(self.config.threads)
        try:
            loop.run()
        except Exception as error:
            self._die(error)

    def _die(self, error: BaseException) -> None:
        with self._lock:
            if self._closing or self._death is not None:
                return
            reason = self._death = f"the decode engine failed: {type(error).__name__}: {error}"
        traceback.print_exception(error)
        self._scheduler.close(EngineDead(reason))
        if self._arrivals is not None:
            self._arrivals.stop()
        if self._on_death is not None:
            self._on_death(reason)
