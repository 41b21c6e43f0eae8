"""Several choices of one request, each asked for as a request of its own, and one answer of all. Pure.

Dynamo's frontend ends an answer where the first of several choices ends. The prompt is computed once all the same, as
all of them share it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wavepp_worker.errors import InvalidRequest

MOST_CHOICES = 128
"""Of one request, those of all its prompts together."""
MOST_CHOICE_BYTES = 64 << 20
"""Of the body of a request, once for each choice: so much is asked, and decoded, for all of them."""


def choices_wanted(body: Any) -> int:
    """How many choices for each prompt; 1 also where the frontend refuses what is asked for."""
    wanted = body.get("n") if isinstance(body, Mapping) else None
    return wanted if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 1 else 1


def check_bytes(count: int, size: int) -> None:
    """Refuse a request that would be too much asked once for each of ``count`` choices; ``size``: bytes of its body.

    Raises:
        InvalidRequest: it would.
    """
    if count * size > MOST_CHOICE_BYTES:
        raise InvalidRequest(
            f"{count} choices of a body of {size} bytes are {count * size} bytes, this deployment takes at most "
            f"{MOST_CHOICE_BYTES}; ask for fewer choices, or send a shorter prompt"
        )


def one_choice(body: Mapping[str, Any], number: int) -> bytes:
    """The request for choice ``number``, of 0 and up; with a seed, each has another."""
    rest = {key: value for key, value in body.items() if key not in ("n", "best_of")}
    seed = body.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool):
        rest["seed"] = seed + number if seed + number < 2**63 else seed - number
    return json.dumps(rest).encode()


class Choices:
    """Puts answers to requests for one choice together."""

    def __init__(self, count: int) -> None:
        """``count``: choices for each prompt."""
        self._count = count
        self._id: str | None = None
        self._usages: dict[int, dict[str, Any]] = {}

    def merged(self, answers: list[dict[str, Any]]) -> dict[str, Any]:
        """One answer of all, given in their order."""
        pieces = [self.piece(answer, number) for number, answer in enumerate(answers)]
        every = [choice for piece in pieces for choice in piece.get("choices", ())]
        return {
            **pieces[0],
            "choices": sorted(every, key=lambda choice: choice["index"]),
            "usage": self.usage(),
        }

    def piece(self, piece: dict[str, Any], number: int) -> dict[str, Any]:
        """A piece of the answer to request ``number``, as one of the whole answer."""
        if self._id is None:
            self._id = piece.get("id")
        if isinstance(usage := piece.get("usage"), dict):
            self._usages[number] = usage
        choices = [
            {**choice, "index": choice["index"] * self._count + number} for choice in piece.get("choices", ())
        ]
        return {**piece, **({"id": self._id} if "id" in piece else {}), "choices": choices}

    def usage(self) -> dict[str, Any] | None:
        """Of the whole answer, as far as it is known: the prompt counts once."""
        if not self._usages:
            return None
        first = self._usages[min(self._usages)]
        completion = sum(usage.get("completion_tokens") or 0 for usage in self._usages.values())
        return {
            **first,
            "completion_tokens": completion,
            "total_tokens": first.get("prompt_tokens", 0) + completion,
        }
