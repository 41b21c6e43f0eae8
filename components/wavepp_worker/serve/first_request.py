"""What to try once a graph is ready. Pure."""

from __future__ import annotations

import json

QUESTION = "Why is the sky blue?"


def first_request(base_url: str, model: str, *, chats: bool) -> str:
    """A command of a shell, on one line, that asks ``model``.

    Args:
        chats: whether the model takes messages; else it is asked to continue a prompt.
    """
    path = "chat/completions" if chats else "completions"
    asked = {"messages": [{"role": "user", "content": QUESTION}]} if chats else {"prompt": QUESTION}
    body = json.dumps({"model": model, **asked, "max_tokens": 64})
    return f"curl -s {base_url}/v1/{path} -H 'Content-Type: application/json' -d '{body}'"
