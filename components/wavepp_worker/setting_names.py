"""How a setting is called where it was given: keys, flags, and what was probably meant. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

SEE_HELP = " (see --help)"
"""Ends what is said about a command line."""
VARIABLES = "DYN_WAVEPP_"
"""What the environment variables of settings begin with."""
LEAST_LIKENESS = 0.6
"""Of two words, by ``difflib``'s ratio, for one to be taken for the other misspelt."""


def flag_of(key: str) -> str:
    """``kv_tokens`` -> ``--kv-tokens``."""
    return "--" + key.replace("_", "-")


def variable_of(key: str) -> str:
    """``kv_tokens`` -> ``DYN_WAVEPP_KV_TOKENS``."""
    return VARIABLES + key.upper()


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a word; None if none is like it."""
    plain = {name.replace("-", "_").casefold(): name for name in known}
    asked = word.replace("-", "_").casefold()
    near = difflib.get_close_matches(asked, plain, n=1, cutoff=LEAST_LIKENESS)
    return plain[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean X?)`` to put behind an unknown word, or nothing where no known one is like it."""
    near = nearest(word, known)
    return f" (did you mean {near}?)" if near else ""


def keys_as_flags(message: str, keys: Iterable[str], spell: Callable[[str], str] = flag_of) -> str:
    """A sentence about keys, such as ``kv_tokens gives rank 0 …``, as one about flags.

    A key that is also a word of English, such as ``device``, is one at the beginning and before ``=``.

    Args:
        keys: those that are flags here.
        spell: what a key is replaced with.
    """
    for key in sorted(keys, key=len, reverse=True):
        anywhere = "_" in key
        place = (
            rf"(?<![\w./-]){key}(?![\w/-]|\.\w)"
            if anywhere
            else rf"(?:^{key}(?=[:= ])|(?<![\w./-]){key}(?==))"
        )
        message = re.sub(place, spell(key), message)
    return message
