"""Reads what Dynamo's planner decides, and tells it what is carried out.

``python -m wavepp_worker.dynamo.planner_client`` is a process beside the launcher, which does not import Dynamo. It
prints a line for each decision, reads those that are carried out from its standard input, and ends when that does. It
holds nothing that others need, so it may be killed and started again at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from typing import Any

import msgspec
from dynamo._core import DistributedRuntime, VirtualConnectorClient

from wavepp_worker.etcd_variables import why_unreached
from wavepp_worker.serve.planned import OPTION
from wavepp_worker.serve.planner_link import DECIDED
from wavepp_worker.serve.scaling import Decision

POLL_SECONDS = 1.0
ANSWER_SECONDS = 10.0
LOST_SECONDS = 30.0
"""Without an answer after which this process ends: Dynamo's client for etcd may have given up."""
EXIT_LOST = 70
_UNSET = -1


class PlannerClient:
    """Follows the decisions of one namespace."""

    def __init__(self, client: Any) -> None:
        """``client``: a ``VirtualConnectorClient``, or what does as it does."""
        self._client = client
        self._last: Decision | None = None
        self._told = False
        self.done: Decision | None = None
        """The latest that is carried out."""

    async def look(self) -> Decision | None:
        """The latest decision if it is another than before, else None; also tells what is carried out.

        Raises:
            Exception: as Dynamo's client does, where etcd is not reached.
        """
        found = await asyncio.wait_for(self._client.get(), ANSWER_SECONDS)
        if found.decision_id == _UNSET:
            # Etcd has lost what it had: the same decision, made anew, is another whose end is to be told.
            self._last = None
            return None
        decision = _decision(found)
        if decision != self._last:
            self._last, self._told = decision, False
            return decision
        if decision == self.done and not self._told:
            await asyncio.wait_for(self._client.complete(found), ANSWER_SECONDS)
            self._told = True
        return None


def _decision(found: Any) -> Decision:
    numbers = {"prefill": found.num_prefill_workers, "decode": found.num_decode_workers}
    return Decision(found.decision_id, {role: count for role, count in numbers.items() if count != _UNSET})


async def follow(namespace: str) -> None:
    """Print decisions until etcd has not been reached for long."""
    loop, told = asyncio.get_running_loop(), False
    while (reason := await asyncio.to_thread(why_unreached, OPTION, os.environ, instead=None)) is not None:
        if not told:
            _say(f"{reason}; tried again until it is")
        told = True
        await asyncio.sleep(POLL_SECONDS)
    # Its own discovery is not needed: decisions are read from etcd, wherever workers find each other.
    runtime = DistributedRuntime(loop, "mem", "tcp")
    planner = PlannerClient(VirtualConnectorClient(runtime, namespace))
    threading.Thread(target=_read_done, args=(planner,), daemon=True).start()
    answered, away = loop.time(), False
    while loop.time() - answered < LOST_SECONDS:
        try:
            decision = await planner.look()
        # Whatever Dynamo's client raises: it has no class of its own for what etcd does.
        except Exception as error:
            if not away:
                _say(f"the planner's decisions cannot be read, and replicas stay as they are: {error}")
            away = True
        else:
            if away:
                _say("the planner's decisions can be read again")
            answered, away = loop.time(), False
            if decision is not None:
                print(DECIDED + msgspec.json.encode(decision).decode(), flush=True)
        await asyncio.sleep(POLL_SECONDS)


def _read_done(planner: PlannerClient) -> None:
    for line in sys.stdin:
        planner.done = msgspec.json.decode(line, type=Decision)
    # The launcher is gone.
    os._exit(0)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", required=True, help="Dynamo's, of the planner and its workers")
    arguments = parser.parse_args()
    # The launcher ends this process when it does not need it any more.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(follow(arguments.namespace))
    # Dynamo's runtime may wait for an etcd that is not there.
    os._exit(EXIT_LOST)


if __name__ == "__main__":
    main()
