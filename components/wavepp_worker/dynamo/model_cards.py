"""Which workers of an endpoint have which models in discovery: the names of *model cards*, as Dynamo stores them."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from wavepp_worker.dynamo.meeting_places import STORE_VARIABLE
from wavepp_worker.etcd_gateway import keys_with_prefix

BASE = ""
"""The card of a worker's base model; those of adapters have their short names."""
FILE_SECONDS = 10.0
"""For which Dynamo keeps what its owner in the store of files does not renew."""
UNCLEARED_SECONDS = 5.0
"""After that: what is still there then, no process of Dynamo knows of, as each removes such things every 3.3 s."""


@dataclass(frozen=True)
class WorkerCards:
    """The cards of one worker.

    Attributes:
        models: their names.
        expires: seconds of ``time.monotonic()`` at which discovery forgets one of them that is not renewed before.
    """

    models: frozenset[str]
    expires: float


CardsByWorker = dict[int, WorkerCards]

_BUCKET = "v1/mdc"
_DEFAULT_STORE = "dynamo_store_kv"
_WORKER_ID = re.compile("[0-9a-f]+")


def card_reader(
    discovery: str, environment: Mapping[str, str], endpoint: tuple[str, str, str]
) -> Callable[[], CardsByWorker | None] | None:
    """What reads the cards at an endpoint; None where discovery is one that cannot be read.

    It may block for seconds, and answers None if discovery does not.

    Args:
        discovery: Dynamo's name of it.
        environment: of the worker; says where discovery is.
        endpoint: namespace, component and name.
    """
    if discovery == "etcd":
        return partial(_in_etcd, dict(environment), endpoint)
    if discovery == "file":
        store = environment.get(STORE_VARIABLE) or Path(tempfile.gettempdir(), _DEFAULT_STORE)
        return partial(_in_files, Path(store, _BUCKET), endpoint)
    return None


def _in_etcd(environment: Mapping[str, str], endpoint: tuple[str, str, str]) -> CardsByWorker | None:
    now = time.monotonic()
    keys = keys_with_prefix(environment, "/".join((_BUCKET, *endpoint, "")))
    if keys is None:
        return None
    return _cards(((key.removeprefix(f"{_BUCKET}/"), stays) for key, stays in keys.items()), endpoint, now)


def _in_files(bucket: Path, endpoint: tuple[str, str, str]) -> CardsByWorker | None:
    found, now = [], time.monotonic()
    try:
        for entry in bucket.iterdir():
            stays = FILE_SECONDS - (time.time() - entry.stat().st_mtime)
            if entry.is_file() and stays > -UNCLEARED_SECONDS:
                found.append((unquote(entry.name), stays))
    except FileNotFoundError:
        if bucket.exists():
            # One was removed meanwhile.
            return None
        # Nobody has entered any.
        return {}
    except OSError:
        return None
    return _cards(found, endpoint, now)


def _cards(keys: Iterable[tuple[str, float]], endpoint: tuple[str, str, str], now: float) -> CardsByWorker:
    """``keys``: each with the seconds for which it stays; ``now``: of before they were asked for.

    It is namespace, component, endpoint, id of the worker in hexadecimal, and, of an adapter, its short name.
    """
    found = CardsByWorker()
    for key, stays in keys:
        parts = key.split("/")
        if tuple(parts[:3]) == endpoint and len(parts) in (4, 5) and _WORKER_ID.fullmatch(parts[3]):
            worker, model = int(parts[3], 16), parts[4] if len(parts) == 5 else BASE
            before = found.get(worker, WorkerCards(frozenset(), now + stays))
            found[worker] = WorkerCards(before.models | {model}, min(before.expires, now + stays))
    return found
