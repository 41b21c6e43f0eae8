"""The JSON of a request's body, as a whole or without the token ids of a long prompt."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from wavepp_worker.errors import InvalidRequest

LONG_PROMPT_BYTES = 16 << 10
"""Token ids in fewer bytes are read at once: it takes less than a tenth of a millisecond."""

_IDS = re.compile(rb"\[\s*\d")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decoded(body: bytes) -> Any:
    """The value of a body; the frontend, too, puts up with bare control characters in strings.

    Raises:
        InvalidRequest: it is no JSON, or nests too deeply.
    """
    try:
        with _without_collection():
            with suppress(msgspec.MsgspecError, ValueError):
                return msgspec.json.decode(body)
            # It takes more than twice as long, and what else the frontend puts up with.
            return json.loads(body, strict=False)
    except RecursionError as error:
        raise InvalidRequest("the body nests too deeply; send a flat object") from error
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error


def decoded_but_ids(body: bytes) -> Any:
    """As ``decoded``; but a long prompt that begins with a token id stays a ``msgspec.Raw``, which nobody has checked.

    To read 32,000 ids takes milliseconds, in which whoever computes them could have begun.
    """
    if len(body) < LONG_PROMPT_BYTES:
        return decoded(body)
    try:
        members = _OBJECT.decode(body)
        prompt = members.get("prompt")
        if prompt is None or len(memoryview(prompt)) < LONG_PROMPT_BYTES or not _IDS.match(prompt):
            return decoded(body)
        with _without_collection():
            rest = {key: msgspec.json.decode(members[key]) for key in members.keys() - {"prompt"}}
        return {**rest, "prompt": prompt}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return decoded(body)


def ids_unread(body: Any) -> bool:
    """Whether ``decoded_but_ids`` left the prompt of this body as it was."""
    return isinstance(body, Mapping) and isinstance(body.get("prompt"), msgspec.Raw)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Looking for garbage while a value is built, which has none, takes up to nine tenths of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
