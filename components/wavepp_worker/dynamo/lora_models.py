"""LoRA adapters in Dynamo's discovery: each is a model of its own, at the endpoint of the worker that has it."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
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

from wavepp_worker.dynamo.endpoint_types import with_endpoint_types

logger = logging.getLogger(__name__)

_ROLES = {
    DisaggregationMode.PREFILL: (WorkerType.Prefill, [[WorkerType.Decode]]),
    DisaggregationMode.DECODE: (WorkerType.Decode, [[WorkerType.Prefill]]),
    DisaggregationMode.AGGREGATED: (WorkerType.Aggregated, []),
}
"""What a worker is, and whom it needs beside it."""


POLL_SECONDS = 0.05
"""How often a worker looks whether it is in discovery, after which its adapters are entered there."""
THINKING = "default_thinking_mode"
"""The key under which frontends look for what ``--dyn-default-thinking-mode`` says."""
BASE_MODEL_SECONDS = 3.0
"""That a frontend may take to add a base model of which it has heard."""
OTHERS_SECONDS = 6.0
"""After which a worker that stays in discovery has its adapters there: those of the first come after itself."""
LONGEST_WAIT_SECONDS = 30.0
"""For another worker that stays, where some come and go."""
ADAPTERS_FIRST = tuple(map(int, version("ai-dynamo").split(".")[:2])) < (1, 6)
"""Whether a worker that is not the first enters its adapters before itself: Dynamo 1.6 needs it no more."""


class AdapterModels:
    """A worker's adapters in discovery: entered when it comes, taken out when it leaves.

    The first worker of an endpoint enters its adapters after itself, as a frontend does for half a minute without an
    adapter that comes before its base model. With Dynamo 1.4 a later one enters them before itself: when the last
    worker with an adapter leaves, its frontends end all prefill of the base model, and a worker that had brought that
    alone does not begin it again. Those of another worker must be there by then, as it is for want of them that a
    frontend needs the base model; and an adapter that it could not add, it never forgets any more once workers leave.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._endpoint: Any = None
        self._entering: asyncio.Task[None] | None = None

    @property
    def entering(self) -> bool:
        """Whether they are still to be entered."""
        return self._entering is not None and not self._entering.done()

    async def enter(
        self,
        endpoint: Any,
        client: Any,
        mode: DisaggregationMode,
        registration: Registration,
        options: argparse.Namespace,
        failed: Callable[[Exception], None],
    ) -> None:
        """Have frontends list every adapter as a model, and send requests for it here.

        To be called before the worker itself is in discovery. Returns at once for the first worker of the endpoint,
        else when they are entered.

        Args:
            endpoint: of the worker.
            client: of the endpoint: whether discovery has the worker.
            mode: its role.
            registration: of the base model.
            options: Dynamo's own of the worker.
            failed: called if discovery does not take them.
        """

        if not self._names:
            return
        may_come = asyncio.Event()

        async def register() -> None:
            await _register(endpoint, self._names, mode, registration, options)

        async def wait_and_register() -> None:
            try:
                if not (ADAPTERS_FIRST and await self._register_beside_others(client, register)):
                    may_come.set()
                    while endpoint.connection_id() not in client.instance_ids():
                        await asyncio.sleep(POLL_SECONDS)
                    await asyncio.sleep(BASE_MODEL_SECONDS)
                    await register()
            except Exception as error:
                failed(error)
            finally:
                may_come.set()

        self._endpoint = endpoint
        self._entering = asyncio.create_task(wait_and_register())
        await may_come.wait()

    async def _register_beside_others(self, client: Any, register: Callable[[], Awaitable[None]]) -> bool:
        """Enter them while workers that have theirs in discovery are there; whether they are entered."""
        if not await self._another_stays(client):
            return False
        await register()
        if self._others(client):
            return True
        # They left meanwhile, and frontends may have missed what they needed.
        await self._unregister()
        return False

    async def _another_stays(self, client: Any) -> bool:
        """Whether another worker is there for so long that its adapters are, waiting for that."""
        began = time.monotonic()
        since: dict[int, float] = {}
        while (now := time.monotonic()) - began < LONGEST_WAIT_SECONDS:
            since = {other: since.get(other, now) for other in self._others(client)}
            if not since:
                return False
            if now - min(since.values()) >= OTHERS_SECONDS:
                return True
            await asyncio.sleep(POLL_SECONDS)
        return False

    def _others(self, client: Any) -> set[int]:
        return {*client.instance_ids()} - {self._endpoint.connection_id()}

    async def withdraw(self) -> None:
        """Have frontends forget them; what discovery forgot already is no error."""
        if self._entering is None:
            return
        self._entering.cancel()
        await asyncio.gather(self._entering, return_exceptions=True)
        await self._unregister()

    async def _unregister(self) -> None:
        for name in self._names:
            try:
                await unregister_model(self._endpoint, name)
            except Exception as error:
                logger.debug("the adapter %s was not in discovery any more: %s", name, error)


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
