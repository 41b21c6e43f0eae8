"""The services that graphs are made of: the frontend, and a worker for every role.

A graph of one's own takes them as they are, or changes some of their fields with ``dataclasses.replace``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from wavepp_worker.former_names import NAMES
from wavepp_worker.serve.graph import PLANES, Service

PREDICTED_SECONDS = 30
"""Dynamo's router learns what a replica has from its KV events, and until the first of a prefix has arrived it would
send that prefix's next request elsewhere. With a TTL it also counts what it has just routed. A prediction has to last
while its request queues and its first blocks are computed. One that proves wrong (evicted, cancelled, failed) costs
balance, never correctness, until it is this many seconds old."""
DEVICE_CREDIT = 1.5
"""The prompt that computes a prefix counts as its replica's load, so at the router's own 1.0 the two cancel out and the
next request goes elsewhere all the same. At 1.5 it does once half a prefix of other work waits there."""
ROUTER = {
    "router_mode": "kv",
    "router_predicted_ttl_secs": PREDICTED_SECONDS,
    "router_kv_overlap_score_credit": DEVICE_CREDIT,
}
"""How the frontend chooses a replica; flags of ``python -m dynamo.frontend``."""

FRONTEND = Service(
    name="Frontend",
    module="wavepp_worker.dynamo.frontend",
    arguments="wavepp_worker.dynamo.frontend:FrontendArgs",
    defaults=ROUTER,
    common=(*PLANES, "model"),
    needs_model=True,
    kind="frontend",
)

WORKER_COMMON = (
    *PLANES,
    "model",
    "served_model_name",
    "lora_modules",
    "dtype",
    "kv_dtype",
    "device",
    "threads",
    "block_size",
    "kv_tokens",
    "kv_memory_fraction",
    "max_model_len",
    "max_num_seqs",
    "top_logprobs",
    "perf_metrics",
    "host",
    "request_timeout",
    "wave_timeout",
)
"""Keys of the ``Common`` section that prefill and decode workers both have."""

_OF_A_REPLICA: Mapping[str, Literal["file", "directory", "port"]] = MappingProxyType(
    {"disk_path": "directory", "timeline": "file", "dump_config_to": "file", "bootstrap_port": "port"}
)

DECODE_WORKER = Service(
    name="DecodeWorker",
    module="wavepp_worker.dynamo.decode",
    arguments="wavepp_worker.dynamo.args:DecodeArgs",
    common=WORKER_COMMON,
    former=NAMES,
    unshared={"dump_config_to": "file"},
    needs_model=True,
    scaled_as="decode",
)
"""Generates from KV that prefill workers hand over."""

PREFILL_WORKER = Service(
    name="PrefillWorker",
    module="wavepp_worker.dynamo.prefill",
    arguments="wavepp_worker.dynamo.args:PrefillArgs",
    defaults={"pp": 2},
    common=WORKER_COMMON,
    former=NAMES,
    unshared=_OF_A_REPLICA,
    needs_model=True,
    scaled_as="prefill",
)
"""A replica that prefills over a pipeline of ranks and hands the KV over."""

WORKER = Service(
    name="Worker",
    module="wavepp_worker.dynamo.agg",
    arguments="wavepp_worker.dynamo.args:AggArgs",
    defaults={"pp": 2},
    common=WORKER_COMMON,
    former={
        **NAMES,
        **{f"decode_{other}": f"decode_{name}" for other, name in NAMES.items()},
    },
    unshared=_OF_A_REPLICA,
    needs_model=True,
    scaled_as="decode",
)
"""Prefills over a pipeline of ranks and generates, in one worker."""
