"""The process of a worker: from what its command line says of Dynamo to its exit code."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from dynamo.common.backend.worker import Worker, WorkerConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.llm import ModelInput

from wavepp_worker.dynamo.endpoint_types import with_endpoint_types
from wavepp_worker.dynamo.etcd_use import wait_for_etcd
from wavepp_worker.dynamo.nats_use import hide_unused_nats
from wavepp_worker.dynamo.runtime_args import RuntimeArgs
from wavepp_worker.dynamo.worker import WaveppWorker, leave_process
from wavepp_worker.errors import ConfigError, WaveppError

REQUEST_LIMIT_VARIABLE = "DYN_ENGINE_REQUEST_LIMIT"
EXIT_BAD_CONFIG = 2


def worker_config(runtime: RuntimeArgs, model: str, mode: DisaggregationMode) -> WorkerConfig:
    """Dynamo's own configuration of a worker.

    Args:
        runtime: the command line's Dynamo part.
        model: the model directory.
        mode: the worker's role.
    """
    if runtime.options.engine_request_limit is not None:
        # Dynamo's runtime knows it from the environment alone, where no worker of its own puts it.
        os.environ[REQUEST_LIMIT_VARIABLE] = str(runtime.options.engine_request_limit)
    return WorkerConfig.from_runtime_config(
        with_endpoint_types(runtime.options, Path(model)),
        model_name=model,
        served_model_name=runtime.served_model_name,
        model_input=ModelInput.Tokens,
        disaggregation_mode=mode,
        namespace=runtime.namespace,
        component=runtime.component,
        endpoint=runtime.endpoint,
    )


def run_worker(make: Callable[[], Awaitable[tuple[WaveppWorker, WorkerConfig]]]) -> None:
    """Run a worker until it is told to stop.

    Leaves with a sentence if it cannot start: code 2 if the configuration is to blame, else 1.
    """

    # A fault in native code prints where every thread was.
    faulthandler.enable()

    async def main() -> None:
        worker, config = await make()
        # From here on none but Dynamo reads them.
        hide_unused_nats(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            # Dynamo stops the worker. Its handlers come later, and call those that they find.
            asyncio.get_running_loop().add_signal_handler(number, worker.told_to_stop)
        await wait_for_etcd(config)
        try:
            await Worker(worker, config).run()
        except Exception:
            if worker.start_error is not None:
                raise worker.start_error from None
            raise
        await asyncio.to_thread(worker.forget_in_discovery)
        # Dynamo's threads may still call into Python: they abort the process if the interpreter ends under them, and
        # what they ask for is lost with an ERROR if the event loop does.
        leave_process(worker.runtime_ended())

    try:
        uvloop.run(main())
    except WaveppError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_CONFIG if isinstance(error, ConfigError) else 1) from error
