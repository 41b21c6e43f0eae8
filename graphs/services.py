"""What the graphs have in common."""

from __future__ import annotations

from wavepp_worker.serve import PLANES, Service

FRONTEND = Service(
    name="Frontend",
    module="wavepp_worker.dynamo.frontend",
    arguments="wavepp_worker.dynamo.frontend:FrontendArgs",
    defaults={"router_mode": "kv"},
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
