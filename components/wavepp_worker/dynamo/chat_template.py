"""Whether a chat is to blame that the frontend could not write it as a prompt.

A model's chat template may refuse messages, such as two of one role in a row, or fail at one without content.
Dynamo's frontend reports both as an internal error. So after such an error the chat is rendered here, with the
template's own words for what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplate:
    """One model's template, by the rules that transformers renders it with.

    Args:
        source: the template.
        special: what it may know beside the chat, such as ``bos_token``.

    Raises:
        TemplateError: it is no template.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._template = environment.from_string(source)
        self._special = special

    @classmethod
    def read(cls, model: Path) -> ChatTemplate | None:
        """The template of a model directory; None if it has none, or none that can be read."""
        try:
            config = json.loads((model / "tokenizer_config.json").read_text())
            beside = model / "chat_template.jinja"
            source = beside.read_text() if beside.exists() else config.get("chat_template")
            special = {key: value for key, value in config.items() if key.endswith("_token")}
            return cls(source, special) if isinstance(source, str) else None
        except (OSError, ValueError, TemplateError):
            return None

    def complaint(self, body: Mapping[str, Any]) -> str | None:
        """Why the chat of a request cannot be written as a prompt; None if it can."""
        extra: dict[str, Any] = {}
        for key in ("chat_template_args", "chat_template_kwargs"):
            if isinstance(body.get(key), Mapping):
                extra |= body[key]
        try:
            messages = [_flat(message) for message in body["messages"]]
            known = {"add_generation_prompt": True, **self._special, **extra, "tools": body.get("tools")}
            self._template.render({**known, "messages": messages})
        except Exception as error:
            return f"the model's chat template does not take these messages: {error}"
        return None


def _flat(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Text in parts as one text, as the frontend passes it to templates that know no parts."""
    content = message.get("content")
    if not isinstance(content, list) or not content:
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
