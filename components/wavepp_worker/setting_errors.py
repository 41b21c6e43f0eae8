"""What is wrong with given settings, as one sentence that names each as it was written."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pydantic import ValidationError

from wavepp_worker.setting_names import did_you_mean, keys_as_flags

WHOLE_NUMBER, PER_RANK = "a whole number", ", or one per rank such as 32768,24576"
_NO_WHOLE_NUMBER = ("int_parsing", "int_type", "int_from_float")

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}
"""pydantic's names of bounds: the words for one, and where its limit stands."""


def plain(number: float) -> str:
    """A limit as people write it: ``1`` rather than ``1.0``, ``1000000`` rather than ``1e+06``."""
    return str(int(number)) if number == int(number) else str(number)


def explain(error: ValidationError, known: Collection[str], spell: Callable[[str], str] = str) -> str:
    """The sentence.

    Args:
        error: of a configuration made of keyword arguments.
        known: the settings there are.
        spell: how a setting is written where these were given, such as ``--key``.
    """
    grouped: dict[str, list[str]] = {}
    problems = error.errors()
    lists = {problem["loc"][0] for problem in problems if str(problem["loc"][1:2]).startswith("('tuple[int")}
    whole = {problem["loc"][0] for problem in problems if problem["type"] in _NO_WHOLE_NUMBER}
    for problem in problems:
        name = str(problem["loc"][0]) if problem["loc"] else ""
        said = grouped.setdefault(spell(name) if name else "", [])
        match problem["type"]:
            case "missing" if len(problem["loc"]) > 1:
                said.append(f"has too few values, {len(problem['input'])}")
            case "missing":
                said.append("is required")
            case "value_error" if not name:
                said.append(keys_as_flags(str(problem["ctx"]["error"]), known, spell))
            case "value_error":
                said.append(str(problem["ctx"]["error"]))
            case "extra_forbidden":
                said.append("unknown" + did_you_mean(spell(name), map(spell, known)))
            case kind if kind in _BOUNDS:
                words, limit = _BOUNDS[kind]
                said.append(f"should be {words} {plain(problem['ctx'][limit])}, not {problem['input']}")
            case "tuple_type" if problem["loc"][0] in whole:
                pass
            case kind if kind in _NO_WHOLE_NUMBER:
                several = PER_RANK if problem["loc"][0] in lists else ""
                said.append(f"should be {WHOLE_NUMBER}{several}, not {problem['input']!r}")
            case _:
                text = problem["msg"].replace("Input should", "should")
                said.append(f"{text}, not {problem['input']!r}")
    return "; ".join(
        f"{key}: {text}" if key else text
        for key, text in ((key, " or ".join(dict.fromkeys(texts))) for key, texts in grouped.items())
    )
