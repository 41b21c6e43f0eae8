"""The command that is printed when a graph is ready."""

from __future__ import annotations

import json
import shlex

import pytest
from wavepp_worker.serve.first_request import first_request


@pytest.mark.parametrize(
    ("chats", "path", "key"),
    [(True, "/v1/chat/completions", "messages"), (False, "/v1/completions", "prompt")],
)
def test_it_asks_what_the_model_can_answer(chats: bool, path: str, key: str) -> None:
    command = first_request("http://127.0.0.1:8000", "some model", chats=chats)
    words = shlex.split(command)
    assert words[2] == f"http://127.0.0.1:8000{path}"
    body = json.loads(words[-1])
    assert body["model"] == "some model"
    assert {"messages", "prompt"} & set(body) == {key}
    assert "\n" not in command
