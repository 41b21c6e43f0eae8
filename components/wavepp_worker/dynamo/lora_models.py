"""LoRA adapters in Dynamo's discovery: each is a model of its own, at the endpoint of the worker that has it."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dynamo.common.backend.engine import EngineConfig as Registration
from dynamo.common.constants import DisaggregationMode
from dynamo.common.utils.endpoint_types import parse_endpoint_types
from dynamo.llm import (
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    lora_name_to_id,
    register_model,
    unregister_model,
)

from wavepp_worker.dynamo.adapter_order import AdapterOrder
from wavepp_worker.dynamo.endpoint_types import with_endpoint_types
from wavepp_worker.dynamo.model_cards import BASE, CardsByWorker

CardReader = Callable[[], CardsByWorker | None]

logger = logging.getLogger(__name__)

_ROLES = {
    DisaggregationMode.PREFILL: (WorkerType.Prefill, [[WorkerType.Decode]]),
    DisaggregationMode.DECODE: (WorkerType.Decode, [[WorkerType.Prefill]]),
    DisaggregationMode.AGGREGATED: (WorkerType.Aggregated, []),
}
"""What a worker is, and whom it needs beside it."""


POLL_SECONDS = 0.05
"""Between two looks whether the worker is in discovery, after which its adapters are entered there."""
CARDS_SECONDS = 0.5
"""Between two reads of what other workers have: etcd is asked anew each time, with a login."""
THINKING = "default_thinking_mode"
"""The key under which frontends look for what ``--dyn-default-thinking-mode`` says."""
BASE_MODEL_SECONDS = 3.0
"""That a frontend may take to add a base model of which it has heard."""
STAY_SECONDS = 8.0
"""For which the adapters of a worker that leaves stay, while another has its base model and is still to enter some."""
UNREGISTER_SECONDS = 1.0
"""For discovery to forget one model."""
LOST_ADAPTER_ENDS_PREFILL = tuple(map(int, version("ai-dynamo").split(".")[:2])) < (1, 6)
"""Whether frontends end all prefill of a base model when its last prefill worker with some adapter leaves."""


class AdapterModels:
    """A worker's adapters in discovery: entered when it comes, taken out when it leaves.

    A frontend adds an adapter if it has the worker's base model, or the adapter from another worker; one that it could
    not add it tries again after half a minute, and never forgets if all workers leave before. So a worker enters its
    adapters some seconds after itself.

    But when the last prefill worker with an adapter leaves, frontends before Dynamo 1.6 end all prefill of the base
    model, and do not begin it again while a worker has that alone. So with these a worker enters those adapters that
    another has before itself, and a prefill worker that leaves takes its base model out before its adapters.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._endpoint: Any = None
        self._mode: DisaggregationMode | None = None
        self._entering: asyncio.Task[None] | None = None
        self._may_come = asyncio.Event()
        self._cards: CardReader | None = None

    @property
    def entering(self) -> bool:
        """Whether entering them is under way."""
        return self._entering is not None and not self._entering.done()

    @property
    def hold_worker_back(self) -> bool:
        """Whether the worker itself waits for some of them."""
        return self.entering and not self._may_come.is_set()

    async def enter(
        self,
        endpoint: Any,
        client: Any,
        cards: CardReader | None,
        mode: DisaggregationMode,
        registration: Registration,
        options: argparse.Namespace,
        failed: Callable[[Exception], None],
    ) -> None:
        """Have frontends list every adapter as a model, and send requests for it here.

        To be called before the worker itself is in discovery. Returns when it may be.

        Args:
            endpoint: of the worker.
            client: of the endpoint: whether discovery has the worker.
            cards: reads what workers of the endpoint have in discovery; None if nothing can.
            mode: its role.
            registration: of the base model.
            options: Dynamo's own of the worker.
            failed: called with what kept them from being entered.
        """
        if not self._names:
            return

        async def register(names: Iterable[str]) -> None:
            await _register(endpoint, names, mode, registration, options)

        async def enter_all() -> None:
            try:
                entered: Collection[str] = ()
                if LOST_ADAPTER_ENDS_PREFILL and cards is not None:
                    entered = await self._enter_what_others_have(register)
                self._may_come.set()
                if left := [name for name in self._names if name not in entered]:
                    while endpoint.connection_id() not in client.instance_ids():
                        await asyncio.sleep(POLL_SECONDS)
                    await asyncio.sleep(BASE_MODEL_SECONDS)
                    await register(left)
            except Exception as error:
                failed(error)
            finally:
                self._may_come.set()

        self._endpoint, self._mode, self._cards = endpoint, mode, cards
        self._entering = asyncio.create_task(enter_all())
        await self._may_come.wait()

    async def _enter_what_others_have(
        self, register: Callable[[Iterable[str]], Awaitable[None]]
    ) -> Collection[str]:
        """Enter those that other workers have; which these are."""
        order, entered = AdapterOrder(self._names, time.monotonic()), list[str]()
        while True:
            others, now = await self._others(), time.monotonic()
            if others is None and order.late(now):
                logger.warning(
                    "discovery has not said what other workers have, so the adapters come after this worker"
                )
            there = order.to_enter(others, now)
            if there is not None:
                await self._unregister(name for name in entered if name not in there)
                await register(there)
                entered = await self._kept(there)
                if len(entered) == len(there) or order.late(time.monotonic()):
                    return entered
            await asyncio.sleep(CARDS_SECONDS)

    async def _kept(self, entered: list[str]) -> list[str]:
        """Those that others still have; the rest is taken back, as frontends may have missed what it needed.

        Not while another has the base model: frontends need no more to add them, and might lose the last of one.
        """
        others = await self._others() if entered else None
        if others is None or any(BASE in each.models for each in others.values()):
            return entered
        kept = AdapterOrder.those_of(others, entered)
        await self._unregister(name for name in entered if name not in kept)
        return kept

    async def _others(self) -> CardsByWorker | None:
        """What other workers have in discovery; None if that is not said, or cannot be read."""
        found = None if self._cards is None else await asyncio.to_thread(self._cards)
        if found is not None:
            found.pop(self._endpoint.connection_id(), None)
        return found

    def enter_no_more(self) -> None:
        """Leave those out that are still to be entered."""
        if self._entering is not None:
            self._entering.cancel()

    async def withdraw(self, stay: float = 0.0) -> None:
        """Have frontends forget them, and before them, where that matters, the worker's base model.

        What discovery forgot already is no error.

        Args:
            stay: seconds for which they may stay while another worker needs that.
        """
        if self._entering is None:
            return
        self.enter_no_more()
        await asyncio.gather(self._entering, return_exceptions=True)
        if LOST_ADAPTER_ENDS_PREFILL and self._mode is DisaggregationMode.PREFILL:
            if not await self._unregister([None]):
                return
            await self._stay(stay)
        await self._unregister(self._names)

    async def _stay(self, seconds: float) -> None:
        """While another has its base model and is still to enter adapters: these may be the last."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            others = await self._others()
            if others is None or not AdapterOrder.any_alone(others, self._names):
                return
            await asyncio.sleep(CARDS_SECONDS)

    async def _unregister(self, names: Iterable[str | None]) -> bool:
        """Whether discovery takes that in time; ``None`` is the base model."""
        for name in names:
            model = name or "the base model"
            try:
                await asyncio.wait_for(unregister_model(self._endpoint, name), UNREGISTER_SECONDS)
            except asyncio.TimeoutError:
                # Nor would it forget the rest in time.
                logger.warning("discovery did not forget %s within %g s", model, UNREGISTER_SECONDS)
                return False
            except Exception as error:
                logger.debug("%s could not be taken out of discovery, or was not there: %s", model, error)
        return True


async def _register(
    endpoint: Any,
    names: Iterable[str],
    mode: DisaggregationMode,
    registration: Registration,
    options: argparse.Namespace,
) -> None:
    worker_type, needs = _ROLES[mode]
    for name in names:
        await register_model(
            model_input=ModelInput.Tokens,
            model_type=_model_type(mode, options, registration.model),
            endpoint=endpoint,
            model_path=registration.model,
            kv_cache_block_size=registration.llm.kv_cache_block_size if registration.llm else None,
            runtime_config=_runtime_config(mode, registration, options),
            custom_template_path=options.custom_jinja_template,
            user_data={"lora_adapter": True, "lora_id": lora_name_to_id(name)},
            lora_name=name,
            base_model_path=registration.model,
            worker_type=worker_type,
            needs=needs,
        )


def _model_type(mode: DisaggregationMode, options: argparse.Namespace, model: str) -> ModelType:
    if mode is DisaggregationMode.PREFILL:
        return ModelType.Prefill
    return parse_endpoint_types(with_endpoint_types(options, Path(model)).endpoint_types)


def _runtime_config(
    mode: DisaggregationMode, registration: Registration, options: argparse.Namespace
) -> ModelRuntimeConfig:
    """As Dynamo makes it of a registration for the base model."""
    config, llm = ModelRuntimeConfig(), registration.llm
    config.tool_call_parser = options.dyn_tool_call_parser
    config.reasoning_parser = options.dyn_reasoning_parser
    config.exclude_tools_when_tool_choice_none = options.exclude_tools_when_tool_choice_none
    config.kv_state_endpoint = options.kv_state_endpoint
    if options.dyn_default_thinking_mode is not None:
        config.set_engine_specific(THINKING, json.dumps(options.dyn_default_thinking_mode))
    config.enable_local_indexer = options.enable_local_indexer and mode is not DisaggregationMode.DECODE
    if llm is None:
        return config
    config.context_length = llm.context_length
    config.total_kv_blocks = llm.total_kv_blocks
    config.max_num_seqs = llm.max_num_seqs
    config.max_num_batched_tokens = llm.max_num_batched_tokens
    if llm.bootstrap_host is not None:
        config.set_disaggregated_endpoint(llm.bootstrap_host, llm.bootstrap_port)
    return config
