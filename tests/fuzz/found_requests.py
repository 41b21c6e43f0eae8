"""Requests that were once answered with an internal error, went past the checks, or took a process down."""

from __future__ import annotations

from typing import Any

from tests.fuzz.http_requests import HttpRequest, encode, good_body
from tests.fuzz.odd_values import Verbatim

_COMPLETIONS, _CHAT, _RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"


def _post(path: str, *headers: tuple[str, str], target: str | None = None, **fields: Any) -> HttpRequest:
    body = {**good_body(path, "model"), **fields}
    return HttpRequest("POST", target or path, headers, encode(list(body.items())), "whole")


FOUND = {
    "a body that nests deeply": _post(_CHAT, metadata=Verbatim("[" * 100_000 + "]" * 100_000)),
    "a body that is said to be compressed": _post(_COMPLETIONS, ("Content-Encoding", "deflate")),
    "a path that is rewritten on its way": _post(_COMPLETIONS, target="/x/../v1/completions", prompt=[10**6]),
    "an address for a path": _post(_COMPLETIONS, target="http://127.0.0.1:1/v1/completions"),
    "a path spelled in another way": HttpRequest("TRACE", "/v1/complet%69ons", (), b"{}", "whole"),
    "a control character that hides what follows": HttpRequest(
        "POST", _COMPLETIONS, (), b'{"model":"model","user":"a\nb","prompt":[1000000]}', "whole"
    ),
    "a worker that is not there": _post(_COMPLETIONS, nvext={"backend_instance_id": 5}),
    "a worker that is not there, in a header": _post(_COMPLETIONS, ("X-Prefill-Instance-Id", "5")),
    "a taint that no worker has": _post(
        _COMPLETIONS, nvext={"routing_constraints": {"required_taints": ["x"]}}
    ),
    "token ids outside the vocabulary in nvext": _post(_CHAT, nvext={"token_data": [10**6]}),
    "a tiny repetition penalty": _post(_COMPLETIONS, temperature=1, repetition_penalty=1e-40, logprobs=1),
    "more tokens at least than at most": _post(_COMPLETIONS, min_tokens=9),
    "more tokens at least than there is room for": _post(
        _COMPLETIONS, max_tokens=None, min_tokens=2**31, temperature=0
    ),
    "five stop strings": _post(_COMPLETIONS, stop=["a", "b", "c", "d", "e"]),
    "five stop tokens": _post(_COMPLETIONS, stop_token_ids=[1, 2, 3, 4, 5]),
    "a regular expression without a character": _post(_COMPLETIONS, guided_regex=""),
    "a conversation that nobody kept": _post(_RESPONSES, previous_response_id="a"),
    "an answer in the background": _post(_RESPONSES, background=True),
    "a picture as input": _post(
        _RESPONSES,
        input=[{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1:1/"}]}],
    ),
    "a message without content": _post(_CHAT, messages=[{"role": "user", "content": []}]),
    "a streamed message without content": _post(
        _CHAT, messages=[{"role": "assistant", "content": None}], stream=True
    ),
    "a thousand prompts": _post(_COMPLETIONS, prompt=[[1]] * 1000),
}
