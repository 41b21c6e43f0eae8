"""Which workers of an endpoint have which models in discovery: the names of *model cards*, as Dynamo stores them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from wavepp_worker.dynamo.meeting_places import STORE_VARIABLE
from wavepp_worker.etcd_gateway import keys_with_prefix

BASE = ""
"""The card of a worker's base model; those of adapters have their short names."""
ModelsByWorker = dict[int, set[str]]
"""The names of its cards, by the id of a worker."""

_BUCKET = "v1/mdc"
_DEFAULT_STORE = "dynamo_store_kv"


def card_reader(
    discovery: str, environment: Mapping[str, str], endpoint: tuple[str, str, str]
) -> Callable[[], ModelsByWorker | None] | None:
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


def _in_etcd(environment: Mapping[str, str], endpoint: tuple[str, str, str]) -> ModelsByWorker | None:
    keys = keys_with_prefix(environment, "/".join((_BUCKET, *endpoint, "")))
    return None if keys is None else _cards((key.removeprefix(f"{_BUCKET}/") for key in keys), endpoint)


def _in_files(bucket: Path, endpoint: tuple[str, str, str]) -> ModelsByWorker | None:
    try:
        return _cards((unquote(entry.name) for entry in bucket.iterdir()), endpoint)
    except FileNotFoundError:
        # Nobody has entered any.
        return {}
    except OSError:
        return None


def _cards(keys: Iterable[str], endpoint: tuple[str, str, str]) -> ModelsByWorker:
    """``keys``: namespace, component, endpoint, id of the worker in hexadecimal, and, of an adapter, its short name."""
    found: ModelsByWorker = {}
    for key in keys:
        parts = key.split("/")
        if tuple(parts[:3]) == endpoint and len(parts) in (4, 5):
            # What is no number is no worker's.
            with contextlib.suppress(ValueError):
                found.setdefault(int(parts[3], 16), set()).add(parts[4] if len(parts) == 5 else BASE)
    return found
