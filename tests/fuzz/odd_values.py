"""Values that break parsers and arithmetic: extremes, wrong types, huge and deep ones. Hypothesis strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Verbatim:
    """A JSON value that is written as it is, such as one that no encoder would write."""

    text: str


WHOLE_NUMBERS = st.sampled_from(
    [0, 1, -1, 2, 3, 5, 20, 21, 255, 256, 299, 300, 1023, 1024, 1025]
    + [sign * (2**bits + off) for bits in (15, 31, 32, 53, 63, 64) for off in (-1, 0, 1) for sign in (1, -1)]
)
FRACTIONS = st.sampled_from(
    [
        0.0,
        -0.0,
        0.5,
        1.0,
        1.0000001,
        2.0,
        2.0001,
        -2.0,
        -2.0001,
        1e-5,
        1e-40,
        5e-324,
        1e38,
        1e39,
        1e300,
        -1e300,
    ]
)
NO_NUMBERS = st.sampled_from([float("nan"), float("inf"), float("-inf")])
BEYOND_NUMBERS = st.sampled_from(
    [
        Verbatim(text)
        for text in ("1e999", "-1e999", "1e-999", "-0", "01", "+1", "0x10", "1.", "9" * 400, "9" * 5000)
    ]
)
NUMBERS = WHOLE_NUMBERS | FRACTIONS | NO_NUMBERS | BEYOND_NUMBERS

TEXTS = st.sampled_from(
    [
        *(
            "",
            " ",
            "a",
            "\0",
            "\x1b[2J",
            "\u202e",
            "\ufeff",
            "\uffff",
            "\ud800",
            "\udfff\ud800",
            "\U0010ffff",
        ),
        *(
            "e\u0301" * 50,
            "\U0001f469\u200d\U0001f467",
            "<|im_start|>",
            "</s>",
            "{{7*7}}",
            "{% raw %}",
            "%s%n",
        ),
        *("../../etc/passwd", "a" * 5000),
    ]
) | st.text(st.characters(), max_size=12)

DEPTHS = st.sampled_from([5, 100, 127, 128, 500, 3000, 100_000])


def _deep(depth: int) -> st.SearchStrategy[Verbatim]:
    return st.sampled_from(
        [
            Verbatim("[" * depth + "]" * depth),
            Verbatim('{"a":' * depth + "1" + "}" * depth),
            Verbatim("[" * depth),
        ]
    )


DEEP = DEPTHS.flatmap(_deep)
LENGTHS = st.sampled_from([0, 1, 2, 17, 129, 1100, 50_000])
HUGE = st.builds(
    lambda item, length: [item] * length, st.sampled_from([0, 1, "a", "", None, [1], {}]), LENGTHS
)
CONTAINERS = st.sampled_from(
    [[], {}, [None], [[]], {"": None}, [1, "a"], {"type": "text"}, {"a": [1, {"b": None}]}]
)

ODD: st.SearchStrategy[Any] = st.one_of(
    NUMBERS, NUMBERS, TEXTS, CONTAINERS, HUGE, DEEP, st.sampled_from([None, True, False])
)
