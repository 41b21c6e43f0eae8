"""What the graphs have in common."""

from __future__ import annotations

from wavepp_worker.serve import PLANES, Service

ROUTER = {
    "router_mode": "kv",
    # Dynamo's router learns what a replica has from its KV events, and until the first of a prefix has arrived it would
    # send that prefix's next request elsewhere. With a TTL it also counts what it has just routed. A prediction has to
    # last while its request queues and its first blocks are computed. One that proves wrong (evicted, cancelled,
    # failed) costs balance, never correctness, until it is this many seconds old.
    "router_predicted_ttl_secs": 30,
    # The prompt that computes a prefix counts as its replica's load, so at the router's own 1.0 the two cancel out and
    # the next request goes elsewhere all the same. At 1.5 it does once half a prefix of other work waits there.
    "router_kv_overlap_score_credit": 1.5,
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
    "dtype",
    "device",
    "threads",
    "block_size",
    "kv_tokens",
    "max_model_len",
    "max_num_seqs",
    "top_logprobs",
    "host",
    "request_timeout",
    "wave_timeout",
)
"""Keys of the ``Common`` section that prefill and decode workers both have."""
