"""Headers of requests as they are passed on, and those that cannot be. Pure."""

from __future__ import annotations

from collections.abc import Collection

from multidict import MultiMapping

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "expect",
    }
)
"""Of one connection. Host and Content-Length are made anew for the next one; Expect is met by whoever passes on."""
ID_HEADER = "x-dynamo-request-id"
"""By it, a client chooses the id that a request has on every worker."""
TENANT_HEADER = "x-tenant-id"
"""To Dynamo's frontend it is the request's salt, whatever the body says."""
CHOICE_HEADER = "x-wavepp-choice"
"""Marks a request that is part of another one."""
_ONCE = (ID_HEADER, TENANT_HEADER, CHOICE_HEADER)


def unclear_header(headers: MultiMapping[str]) -> str | None:
    """Why a request is refused that gives what is checked twice, or a header that is no text; None if it is not."""
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            return f"the header {name} is given twice; give it once"
    for name, value in headers.items():
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"the header {name} is not UTF-8; leave it out, or encode it"
    return None


def passed_on(headers: MultiMapping[str], without: Collection[str]) -> list[tuple[str, str]]:
    """All headers but those ``without``, which are in lower case as the names of all are then.

    Two spellings of a name are one header with two values to whoever reads them, but not to aiohttp, which would
    pass on the last alone.
    """
    return [(name.lower(), value) for name, value in headers.items() if name.lower() not in without]
