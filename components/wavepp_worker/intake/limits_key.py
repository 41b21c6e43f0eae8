"""The limits of a decode worker, as an operator writes them into etcd for all workers of a model."""

from __future__ import annotations

import logging

import msgspec

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_limits import PrefillLimits

logger = logging.getLogger(__name__)


def limits_key(name: QueueName) -> str:
    """The key: one for each model and namespace."""
    return f"wavepp/{name.namespace}/{name.model}/remote_prefill"


class LimitsKey:
    """What follows from a key's value. Pure but for the log."""

    def __init__(self, started: PrefillLimits) -> None:
        """``started``: those of the command line, which hold where the key says nothing else."""
        self._started = started

    def limits(self, value: bytes | None) -> PrefillLimits | None:
        """The limits that hold now; None if those that hold stay, as the value is none: the log says why.

        Args:
            value: a JSON object with any of the limits; None if there is no such key.
        """
        try:
            body = {} if value is None else msgspec.json.decode(value, type=dict[str, object])
            return self._started.changed(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            why = f'it is no JSON object like {{"max_local_prefill_length": 4000}}: {error}'
        except InvalidRequest as error:
            why = str(error)
        logger.error("what etcd says of remote prefills is refused, and the limits stay as they are: %s", why)
        return None
