from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.dynamo.option_groups import read_option_groups
from wavepp_worker.errors import InvalidRequest


def test_a_key_that_says_nothing_is_left_out() -> None:
    groups = read_option_groups(
        {
            "sampling_options": {"temperature": 0.0, "top_p": None, "some_new_key": None},
            "stop_conditions": None,
            "output_options": {"skip_special_tokens": False},
        }
    )
    assert groups.sampling == {"temperature": 0.0}
    assert groups.stop == groups.routing == {}
    assert groups.output == {"skip_special_tokens": False}


@pytest.mark.parametrize("nothing", [None, False, [], {}])
def test_an_unknown_key_that_asks_for_nothing_is_fine(nothing: Any) -> None:
    for name in ("sampling_options", "stop_conditions", "output_options"):
        read_option_groups({name: {"some_new_key": nothing}})


@pytest.mark.parametrize("name", ["sampling_options", "stop_conditions", "output_options"])
def test_an_unknown_key_that_asks_for_something_is_named(name: str) -> None:
    with pytest.raises(InvalidRequest, match="some_new_key is not supported"):
        read_option_groups({name: {"some_new_key": 1}})


def test_one_choice_is_what_everybody_gets() -> None:
    read_option_groups({"sampling_options": {"n": 1, "best_of": 1, "length_penalty": 1.0}})
    with pytest.raises(InvalidRequest, match="best_of=2 is not supported"):
        read_option_groups({"sampling_options": {"n": 1, "best_of": 2}})
