"""Single questions to etcd over the JSON gateway of its own API; each may block for seconds."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.request
from collections.abc import Mapping
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.etcd_variables import PASSWORD_VARIABLE, USER_VARIABLE, etcd_urls, ssl_context

ANSWER_SECONDS = 2.0
"""For each request; a question with a login is two, at each server."""


def ask_etcd(environment: Mapping[str, str], path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """What the first server that takes a question answers; None if none does, or its certificates cannot be read.

    Args:
        environment: says where etcd is, and who one is there, in Dynamo's variables.
        path: of the gateway.
        body: of the question.
    """
    try:
        context = ssl_context(environment)
    except ConfigError:
        return None
    for url in etcd_urls(environment):
        try:
            gateway = _Gateway(url, context)
            gateway.log_in(environment)
            return gateway.ask(path, body)
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            # Another of its servers may be there.
            continue
    return None


def keys_with_prefix(environment: Mapping[str, str], prefix: str) -> list[str] | None:
    """The keys that begin with ``prefix``; None if no server says."""
    first = prefix.encode()
    body = {
        "key": base64.b64encode(first).decode(),
        "range_end": base64.b64encode(first[:-1] + bytes([first[-1] + 1])).decode(),
        "keys_only": True,
    }
    answer = ask_etcd(environment, "/v3/kv/range", body)
    if answer is None:
        return None
    return [base64.b64decode(each["key"]).decode(errors="replace") for each in answer.get("kvs", ())]


class _Gateway:
    """The JSON gateway of one etcd server."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        # A proxy configured for the outside must not see what goes to etcd, as Dynamo asks none.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def log_in(self, environment: Mapping[str, str]) -> None:
        """Be who the environment says, if anybody."""
        user = environment.get(USER_VARIABLE)
        if user is not None:
            who = {"name": user, "password": environment.get(PASSWORD_VARIABLE, "")}
            self._headers["Authorization"] = self.ask("/v3/auth/authenticate", who)["token"]

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), self._headers)
        with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)
