"""Names of LoRA adapters, each of which is a model in discovery. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from wavepp_worker.errors import ConfigError

LONGEST_NAME = 100
"""Discovery by files has each name in that of a file, with other text, and some characters as three."""
_NO_LETTER = re.compile(r"[^a-z0-9_-]")


def short_name(name: str) -> str:
    """What Dynamo lists an adapter by.

    Small letters, with ``_`` for what is no letter, digit, ``-`` or ``_``, and without such at its beginning.
    """
    return _NO_LETTER.sub("_", name.lower()).lstrip("_")


def check_adapter_names(names: Iterable[str], served: str) -> None:
    """Refuse names under which clients could not ask for an adapter.

    Of two with one ``short_name``, Dynamo has but one, and without a word.

    Args:
        served: what the base model is called.

    Raises:
        ConfigError: names ``lora_modules``.
    """
    listed: dict[str, str] = {}
    for name in names:
        if name == served:
            raise ConfigError(
                f"lora_modules: {name} is what the base model is served as; give the adapter another name"
            )
        short = short_name(name)
        if not short or len(name) > LONGEST_NAME or not name.isprintable():
            raise ConfigError(
                f"lora_modules: an adapter cannot be called {name[:LONGEST_NAME]!r}; give it a name of at most "
                f"{LONGEST_NAME} characters that can be printed, of which one is a letter from a to z or a digit"
            )
        if short in listed:
            raise ConfigError(
                f"lora_modules: {listed[short]} and {name} are one name to Dynamo, which minds neither capitals nor "
                "what is no letter or digit; rename one"
            )
        listed[short] = name
