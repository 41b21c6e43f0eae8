"""What a worker has left in discovery by etcd when it ends: all hangs on one lease, whose number is the worker's id."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.request
from collections.abc import Mapping
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.etcd_variables import PASSWORD_VARIABLE, USER_VARIABLE, etcd_urls, ssl_context

ANSWER_SECONDS = 2.0


def end_lease(environment: Mapping[str, str], instance: str) -> bool:
    """End the lease of one worker, with all that tells of it.

    Args:
        environment: of the worker; says where etcd is, and who one is there.
        instance: the worker's id, in hexadecimal.

    Returns:
        Whether an etcd did; else the lease ends by itself, when its time is over.
    """
    try:
        context = ssl_context(environment)
    except ConfigError:
        return False
    for url in etcd_urls(environment):
        try:
            _end(_Gateway(url, context), environment, instance)
            return True
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            # Another of its servers may be there.
            continue
    return False


def _end(etcd: _Gateway, environment: Mapping[str, str], instance: str) -> None:
    user = environment.get(USER_VARIABLE)
    if user is not None:
        who = {"name": user, "password": environment.get(PASSWORD_VARIABLE, "")}
        etcd.headers["Authorization"] = etcd.ask("/v3/auth/authenticate", who)["token"]
    etcd.ask("/v3/lease/revoke", {"ID": str(int(instance, 16))})


class _Gateway:
    """The JSON gateway of one etcd server."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        self._url = url.rstrip("/")
        self.headers = {"Content-Type": "application/json"}
        # A proxy configured for the outside must not see what goes to etcd, as Dynamo asks none.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), self.headers)
        with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)
