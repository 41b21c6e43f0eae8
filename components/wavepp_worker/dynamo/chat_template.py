"""Whether a chat is to blame that the frontend could not write it as a prompt.

A model's chat template may refuse messages, such as two of one role in a row, or fail at one without content.
Dynamo's frontend reports both as an internal error. So after such an error the chat is rendered here, with the
template's own words for what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.chat_template import MessageWriter, message_writer


class ChatTemplate:
    """One model's template, as a judge of chats."""

    def __init__(self, writer: MessageWriter) -> None:
        """``writer`` writes them as the frontend should have."""
        self._writer = writer

    @classmethod
    def read(cls, model: Path) -> ChatTemplate | None:
        """The template of a model directory; None if it has none, or none that can be read."""
        try:
            writer = message_writer(model)
        except ConfigError:
            return None
        return None if writer is None else cls(writer)

    def complaint(self, body: Mapping[str, Any]) -> str | None:
        """Why the chat of a request cannot be written as a prompt; None if it can."""
        extra: dict[str, Any] = {}
        for key in ("chat_template_args", "chat_template_kwargs"):
            if isinstance(body.get(key), Mapping):
                extra |= body[key]
        try:
            messages = [_flat(message) for message in body["messages"]]
            self._writer.write(messages, {**extra, "tools": body.get("tools")})
        except Exception as error:
            return f"the model's chat template does not take these messages: {error}"
        return None


def _flat(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Text in parts as one text, as the frontend passes it to templates that know no parts."""
    content = message.get("content")
    if not isinstance(content, list) or not content:
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}
