"""What a worker has left in discovery by etcd when it ends: all hangs on one lease, whose number is the worker's id."""

from __future__ import annotations

from collections.abc import Mapping

from wavepp_worker.etcd_gateway import Answer, ask_etcd


def end_lease(environment: Mapping[str, str], instance: str) -> bool:
    """End the lease of one worker, with all that tells of it.

    Args:
        environment: of the worker; says where etcd is, and who one is there.
        instance: the worker's id, in hexadecimal.

    Returns:
        Whether an etcd did; else the lease ends by itself, when its time is over.
    """
    return ask_etcd(environment, "/v3/lease/revoke", {"ID": str(int(instance, 16))}, Answer) is not None
