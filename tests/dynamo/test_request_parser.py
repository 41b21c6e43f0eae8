from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker import token_ids
from wavepp_worker.dynamo.request_parser import RequestLimits, parse_request
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.grammar import Grammar
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.runtime.protocol.requests import PrefillRequest, check_types

LIMITS = RequestLimits(max_model_len=20, vocab_size=100, top_logprobs=5)


def read(defaults: SamplingParams | None = None, **fields: Any) -> Any:
    return parse_request({"token_ids": [1, 2, 3], **fields}, LIMITS, defaults or SamplingParams())


def as_the_frontend_sends(**changes: Any) -> dict[str, Any]:
    """The groups of a request with every key the frontend writes, most of them null."""
    request = {
        "stop_conditions": dict.fromkeys(
            ("max_tokens", "stop", "stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden",
             "min_tokens", "ignore_eos", "max_thinking_tokens")
        ),
        "sampling_options": dict.fromkeys(
            ("n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature",
             "top_p", "top_k", "min_p", "use_beam_search", "length_penalty", "seed",
             "include_stop_str_in_output", "guided_decoding")
        ),
        "output_options": dict.fromkeys(
            ("logprobs", "prompt_logprobs", "skip_special_tokens", "formatted_prompt",
             "return_tokens_as_token_ids")
        ),
        "eos_token_ids": [99],
        "routing": {"dp_rank": 0},
    }  # fmt: skip
    for path, value in changes.items():
        group, _, key = path.partition("__")
        request[group][key] = value
    return request


def test_a_plain_request_is_greedy_and_as_long_as_the_context_allows() -> None:
    parsed = read(**as_the_frontend_sends(stop_conditions__stop_token_ids_hidden=[99]))
    assert token_ids.unpack(parsed.tokens).tolist() == [1, 2, 3]
    assert parsed.sampling == SamplingParams()
    assert parsed.max_tokens == 17
    assert parsed.stop_hidden == (99,)
    assert parsed.salt == ""


def test_every_sampling_option_is_passed_on() -> None:
    given = {
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 42, "presence_penalty": 0.5,
        "frequency_penalty": 0.6, "repetition_penalty": 1.2,
    }  # fmt: skip
    assert read(sampling_options=given, output_options={"logprobs": 3}).sampling == SamplingParams(
        **given, logprobs=3
    )


def test_stops_are_told_apart() -> None:
    stop = {
        "stop": ["a", "b", "a"], "stop_token_ids": [7], "stop_token_ids_visible": [8],
        "stop_token_ids_hidden": [99], "min_tokens": 2, "max_tokens": 4,
    }  # fmt: skip
    parsed = read(stop_conditions=stop, eos_token_ids=[98])
    assert parsed.stop_hidden == (99, 98, 7)
    assert parsed.stop_visible == (8,)
    assert parsed.stop_strings == ("a", "b")
    assert (parsed.min_tokens, parsed.max_tokens) == (2, 4)
    ignoring = read(stop_conditions={**stop, "ignore_eos": True}, eos_token_ids=[98])
    assert ignoring.stop_hidden == (7,)


def test_the_room_left_cuts_the_least_as_well_as_the_most() -> None:
    """The frontend writes the room as ``max_tokens`` where a request names none."""
    for most in (17, None):
        parsed = read(stop_conditions={"min_tokens": 2**31, "max_tokens": most})
        assert (parsed.min_tokens, parsed.max_tokens) == (17, 17)


def test_max_tokens_is_cut_to_the_room_left() -> None:
    assert read(stop_conditions={"max_tokens": 10**6}).max_tokens == 17
    assert parse_request({"token_ids": [1] * 20}, LIMITS, SamplingParams()).max_tokens == 1


def test_the_salt_comes_with_the_routing() -> None:
    assert read(routing={"cache_salt": "tenant"}).salt == "tenant"
    with pytest.raises(InvalidRequest, match="cache_salt has 1025 bytes"):
        read(routing={"cache_salt": "s" * 1025})


def test_an_adapter_is_asked_for_by_its_models_name_or_by_the_router() -> None:
    limits = RequestLimits(max_model_len=20, vocab_size=100, top_logprobs=5, adapters=frozenset({"poet"}))

    def adapter(**fields: Any) -> str:
        return parse_request({"token_ids": [1], **fields}, limits, SamplingParams()).lora

    assert [adapter(model=name) for name in ("poet", "the base", None)] == ["poet", "", ""]
    assert adapter(model="the base", routing={"lora_name": "poet"}) == "poet"
    with pytest.raises(
        InvalidRequest, match="'coder' is not loaded; those that are: poet, or use the base model's"
    ):
        adapter(model="poet", routing={"lora_name": "coder"})


def test_the_priority_comes_with_the_routing() -> None:
    assert read(routing={"priority": -3}).priority == -3
    assert read(**as_the_frontend_sends(routing__priority=None)).priority == 0
    for wrong in ("high", True, 1.5):
        with pytest.raises(InvalidRequest, match=r"priority=.* should be a whole number"):
            read(routing={"priority": wrong})


def test_packed_token_ids_are_understood() -> None:
    parsed = read(token_ids=np.array([4, 5], dtype="<i4").tobytes())
    assert token_ids.unpack(parsed.tokens).tolist() == [4, 5]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"token_ids": []}, "empty"),
        ({"token_ids": None}, "empty"),
        ({"token_ids": [1, 100]}, "token id 100 is outside the vocabulary"),
        ({"token_ids": [1, -1]}, "token id -1"),
        ({"token_ids": b"\1\0\0"}, "cut off"),
        ({"token_ids": np.array([1, -1], "<i4").tobytes()}, "outside the vocabulary"),
        ({"token_ids": [1] * 21}, "21 tokens, this worker accepts at most 20"),
        ({"token_ids": [[1]]}, "flat list"),
        ({"token_ids": ["x"]}, "integers"),
        ({"sampling_options": {"n": 2}}, "n=2"),
        ({"sampling_options": {"best_of": 3}}, "best_of=3"),
        ({"sampling_options": {"guided_decoding": {"regex": "a", "json": {}}}}, "constrained by one of them"),
        ({"sampling_options": {"use_beam_search": True}}, "beam search"),
        ({"sampling_options": {"length_penalty": 2.0}}, "length_penalty"),
        ({"sampling_options": {"logit_bias": {"100": 2}}}, "logit_bias: token id 100"),
        ({"annotations": ['wavepp.logit_bias:{"1": 101}']}, "logit_bias of token 1 is 101"),
        ({"annotations": ["wavepp.logit_bias:{"]}, "not followed by JSON"),
        ({"annotations": ["wavepp.logit_bias:[1]"]}, "logit_bias=.1. should be an object"),
        ({"sampling_options": {"temperature": -1.0}}, "temperature"),
        ({"sampling_options": {"top_p": 1.5}}, "top_p"),
        ({"sampling_options": {"top_k": -2}}, "top_k"),
        ({"output_options": {"logprobs": 6}}, "logprobs"),
        ({"output_options": {"prompt_logprobs": 1}}, "prompt_logprobs"),
        ({"output_options": {"return_tokens_as_token_ids": True}}, "return_tokens_as_token_ids"),
        ({"stop_conditions": {"max_thinking_tokens": 5}}, "max_thinking_tokens"),
        ({"stop_conditions": {"max_tokens": 0}}, "max_tokens"),
        ({"stop_conditions": {"min_tokens": 5, "max_tokens": 4}}, "min_tokens"),
        ({"multi_modal_data": {"image_url": [{}]}}, "images"),
        ({"routing": {"lora_name": "x"}}, "LoRA adapter 'x'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        read(**fields)


def test_unset_options_of_any_name_are_fine() -> None:
    read(sampling_options={"some_new_key": None}, output_options={"another": False})


def test_a_prefill_bans_stop_tokens_of_an_answer_that_must_not_end_yet() -> None:
    """The frontend lowers max_tokens to 1 for the prefill, and leaves min_tokens as it was."""
    request = {
        "token_ids": [1, 2],
        "stop_conditions": {"max_tokens": 1, "min_tokens": 5, "stop_token_ids_hidden": [7]},
        "eos_token_ids": [9],
    }
    limits = RequestLimits(max_model_len=100, vocab_size=300, top_logprobs=5)
    parsed = parse_request(request, limits, SamplingParams(), first_only=True)
    assert set(parsed.banned_first) == {7, 9}
    request["stop_conditions"]["min_tokens"] = 0
    assert parse_request(request, limits, SamplingParams(), first_only=True).banned_first == ()


@pytest.mark.parametrize("key", ["stop", "stop_token_ids", "stop_token_ids_hidden", "stop_token_ids_visible"])
@pytest.mark.parametrize("value", [0, 7, False, "x", {"a": 1}])
def test_what_should_be_a_list_and_is_none_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{key}=.* should be a list"):
        read(stop_conditions={key: value})


@pytest.mark.parametrize("group", ["stop_conditions", "sampling_options", "output_options", "routing"])
def test_a_group_of_options_that_is_no_object_is_refused_by_name(group: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{group}=.* should be an object"):
        read(**{group: ["max_tokens"]})


@pytest.mark.parametrize("key", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
@pytest.mark.parametrize("value", ["1", True, [1], {"a": 1}])
def test_what_should_be_a_number_and_is_none_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{key}=.* should be a number"):
        read(sampling_options={key: value})
    with pytest.raises(InvalidRequest, match=f"{key} is too large a number"):
        read(sampling_options={key: 10**400})


@pytest.mark.parametrize("key", ["top_k", "seed"])
@pytest.mark.parametrize("value", ["1", True, 1.5])
def test_what_should_be_a_whole_number_and_is_none_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{key}=.* should be a whole number"):
        read(sampling_options={key: value})


@pytest.mark.parametrize("key", ["stop_token_ids", "stop_token_ids_hidden", "stop_token_ids_visible"])
def test_stop_tokens_are_token_ids(key: str) -> None:
    for value in ("7", 1.0, None, [7], True):
        with pytest.raises(InvalidRequest, match=r"stop token .* should be a token id"):
            read(stop_conditions={key: [1, value]})
    parsed = read(stop_conditions={key: [-1, 7, 2**70]})
    assert (*parsed.stop_hidden, *parsed.stop_visible) == (7,), "no answer can have the others"
    with pytest.raises(InvalidRequest, match="stop=7 should be a text"):
        read(stop_conditions={"stop": [7]})


def test_a_request_that_bans_every_token_is_refused() -> None:
    every = {"stop_token_ids": list(range(100)), "max_tokens": 5}
    with pytest.raises(InvalidRequest, match="all 100 tokens of the vocabulary are banned"):
        read(stop_conditions={**every, "min_tokens": 1})
    assert len(read(stop_conditions=every).stop_hidden) == 100, "its first token ends it"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([2**63, 2**64, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
"""What a peer can write, beside what the frontend does."""
KEYS = {
    "stop_conditions": (
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "stop_token_ids_hidden",
        "ignore_eos",
    ),
    "sampling_options": (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "presence_penalty",
        "repetition_penalty",
    ),
    "output_options": ("logprobs", "skip_special_tokens"),
    "routing": ("cache_salt", "lora_name"),
}


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    tokens=JSON | st.lists(st.integers(-1, 101), max_size=5),
    eos=st.none() | st.lists(JSON, max_size=2) | JSON,
)
def test_whatever_is_sent_is_understood_or_refused(data: st.DataObject, tokens: Any, eos: Any) -> None:
    request: dict[str, Any] = {"token_ids": tokens, "eos_token_ids": eos}
    for group, keys in KEYS.items():
        small = st.integers(0, 5) | st.floats(0, 1) | JSON
        chosen = st.dictionaries(st.sampled_from(keys), small, max_size=2)
        request[group] = data.draw(JSON | chosen if data.draw(st.integers(0, 9)) == 0 else chosen)
    with contextlib.suppress(InvalidRequest):
        parsed = parse_request(request, LIMITS, SamplingParams())
        check_types(
            PrefillRequest(
                request_id="r",
                tokens=parsed.tokens,
                salt=parsed.salt,
                sampling=parsed.sampling,
                banned=parsed.banned_first,
            )
        )


def test_what_an_answer_must_match_is_passed_on() -> None:
    assert read().grammar is None
    nothing = {"json": None, "regex": None, "choice": None}
    assert read(sampling_options={"guided_decoding": nothing}).grammar is None
    parsed = read(sampling_options={"guided_decoding": {**nothing, "regex": "a"}})
    assert parsed.grammar == Grammar("regex", "a")


def test_biases_come_as_an_option_or_carried() -> None:
    """Dynamo's frontend drops them."""
    biases = ((7, -100.0), (8, 1.5))
    assert read(sampling_options={"logit_bias": {"7": -100, "8": 1.5}}).sampling.logit_bias == biases
    carried = ["x-other", 'wavepp.logit_bias:{"7": -100, "8": 1.5}']
    assert read(annotations=carried).sampling.logit_bias == biases
    assert read(annotations=["x-other"]).sampling.logit_bias == ()
