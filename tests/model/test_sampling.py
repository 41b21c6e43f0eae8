from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TopPLogitsWarper
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.sampling import LEAST_LOGPROB, _likeliest, sample
from wavepp_worker.model.sampling_params import (
    MAX_REPETITION_PENALTY,
    MAX_TOP_K,
    MIN_REPETITION_PENALTY,
    SamplingParams,
    check_sampling,
)

NOTHING = np.zeros(0, dtype=np.uint32)


def logits(seed: int, size: int = 50) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def draws(scores: torch.Tensor, count: int, **params: Any) -> list[int]:
    chosen = SamplingParams(temperature=1.0, seed=1, **params)
    return [sample(scores, chosen, step, NOTHING, []).token for step in range(count)]


@settings(deadline=None)
@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_greedy_ties_equal_argmax(values: list[int]) -> None:
    scores = torch.tensor(values, dtype=torch.float32)
    chosen = sample(scores, SamplingParams(logprobs=1), 0, NOTHING, [])
    assert chosen.token == int(torch.argmax(scores))
    assert chosen.top[0] == (chosen.token, chosen.logprob)


def test_draw_depends_on_seed_and_step_alone() -> None:
    params = SamplingParams(temperature=0.9, seed=5)
    first = [sample(logits(0), params, step, NOTHING, []).token for step in range(30)]
    torch.rand(7)
    again = [sample(logits(0), params, step, NOTHING, [1, 2]).token for step in reversed(range(30))]
    assert first == again[::-1]
    assert len(set(first)) > 5
    other = SamplingParams(temperature=0.9, seed=6)
    assert first != [sample(logits(0), other, step, NOTHING, []).token for step in range(30)]


def test_frequencies_follow_the_distribution() -> None:
    scores = torch.log(torch.tensor([0.5, 0.25, 0.0, 0.15, 0.1]))
    counts = np.bincount(draws(scores, 4000), minlength=5) / 4000
    assert np.abs(counts - [0.5, 0.25, 0.0, 0.15, 0.1]).max() < 0.03
    assert counts[2] == 0


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.7}, {0, 1}),
        ({"min_p": 0.25}, {0, 1, 3}),
        ({"top_k": 1}, {0}),
        ({}, {0, 1, 3, 4}),
    ],
)
def test_filters_keep_what_they_say(params: dict[str, Any], allowed: set[int]) -> None:
    scores = torch.log(torch.tensor([0.5, 0.25, 0.0, 0.15, 0.1]))
    assert set(draws(scores, 300, **params)) == allowed


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1, 5, 127, 128, 129, 3000]),
    spread=st.sampled_from([0.0, 0.1, 1.0, 5.0, 40.0]),
    top_p=st.floats(0.01, 0.999),
    forbidden=st.integers(0, 3),
)
def test_the_likeliest_are_those_that_transformers_keeps(
    seed: int, size: int, spread: float, top_p: float, forbidden: int
) -> None:
    scores = spread * logits(seed, size)
    scores[1 : 1 + forbidden] = -math.inf
    own = _likeliest(scores, top_p)
    other = TopPLogitsWarper(top_p)(None, scores[None])[0]
    assert torch.equal(own[own > -math.inf], scores[own > -math.inf])
    # Of equal ones any, and one more or less where the sum of float32 is not sure.
    assert abs(int((own > -math.inf).sum()) - int((other > -math.inf).sum())) <= (1 if spread else 2)
    both = scores.softmax(-1).double()
    assert float(both[own > -math.inf].sum()) >= top_p - 1e-5
    assert float(both[own > -math.inf].sum() - both[own > -math.inf].min()) <= top_p + 1e-5


@pytest.mark.parametrize(("height", "temperature"), [(20.0, 1e-5), (1e9, 1.0), (3e38, 1.0), (-1e9, 1.0)])
def test_top_p_keeps_as_many_of_large_scores_as_of_small(height: float, temperature: float) -> None:
    scores = torch.full((1000,), height)
    scores[10:] -= abs(height) / 2
    params = SamplingParams(temperature=temperature, top_p=0.75, seed=1)
    kept = {sample(scores, params, step, NOTHING, []).token for step in range(200)}
    assert len(kept) == 8
    assert kept < set(range(10))


def test_penalties() -> None:
    scores = torch.tensor([2.0, 1.9, -1.0])

    def token(generated: list[int], prompt: np.ndarray = NOTHING, **params: float) -> int:
        return sample(scores, SamplingParams(**params), len(generated), prompt, generated).token  # type: ignore[arg-type]

    assert token([]) == 0
    assert token([0], presence_penalty=0.5) == 1
    assert token([0], presence_penalty=0.05) == 0
    assert token([0, 0, 0], frequency_penalty=0.05) == 1
    assert token([0], frequency_penalty=0.05) == 0
    assert token([], prompt=np.array([0], dtype=np.uint32), presence_penalty=2.0) == 0
    assert token([], prompt=np.array([0], dtype=np.uint32), repetition_penalty=1.5) == 1
    assert token([0], repetition_penalty=1.5) == 1
    assert scores.tolist() == pytest.approx([2.0, 1.9, -1.0])


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    scores = logits(3)
    params = SamplingParams(temperature=0.3, top_k=3, frequency_penalty=1.0, seed=2, logprobs=4)
    chosen = sample(scores, params, 1, NOTHING, [4])
    wanted = torch.log_softmax(scores, -1)
    assert chosen.logprob == pytest.approx(float(wanted[chosen.token]))
    assert [t for t, _ in chosen.top] == torch.argsort(scores, descending=True)[:4].tolist()
    assert [p for _, p in chosen.top] == pytest.approx(
        torch.sort(wanted, descending=True).values[:4].tolist()
    )
    assert sample(scores, SamplingParams(), 0, NOTHING, []).logprob is None
    assert sample(scores, SamplingParams(logprobs=0), 0, NOTHING, []).top == ()
    assert len(sample(scores[:3], SamplingParams(logprobs=20), 0, NOTHING, []).top) == 3


def test_tiny_temperature_is_greedy_and_not_a_number() -> None:
    scores = logits(4)
    for temperature in (1e-38, 1e-9, 1e-4):
        params = SamplingParams(temperature=temperature, seed=0)
        assert sample(scores, params, 0, NOTHING, []).token == int(scores.argmax())


def test_not_a_number_is_an_error() -> None:
    for wrong in ([0.0, math.nan], [math.inf, 0.0], [math.nan, math.inf], []):
        with pytest.raises(WaveppError, match="not numbers"):
            sample(torch.tensor(wrong), SamplingParams(), 0, NOTHING, [])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_leaves_no_token_is_an_error(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1, logprobs=1)
    with pytest.raises(WaveppError, match="no token is left to choose"):
        sample(logits(0), params, 0, NOTHING, [], banned=tuple(range(50)))
    with pytest.raises(WaveppError, match="no token is left to choose"):
        sample(torch.full((50,), -math.inf), params, 0, NOTHING, [])


def test_a_penalty_that_overflows_does_not_leave_the_vocabulary() -> None:
    """Logits of the size of bfloat16's largest, times or divided by a penalty, are no float32 any more."""
    scores = torch.tensor([3e38, -3e38, 3e38])
    for penalty in (1e-3, 1e3):
        for temperature in (0.0, 1e-4, 1.0):
            params = SamplingParams(
                temperature=temperature, seed=3, repetition_penalty=penalty, logprobs=1, min_p=1.0
            )
            assert sample(scores, params, 0, np.arange(3, dtype=np.uint32), []).token in (0, 2)


def test_of_equal_alternatives_the_lowest_ids_are_reported() -> None:
    chosen = sample(torch.tensor([0.0, 1.0, 0.0, -math.inf, 0.0]), SamplingParams(logprobs=3), 0, NOTHING, [])
    assert [token for token, _ in chosen.top] == [1, 0, 2]
    every = sample(torch.tensor([0.0, -math.inf]), SamplingParams(logprobs=2), 0, NOTHING, []).top
    assert every == ((0, 0.0), (1, LEAST_LOGPROB))


SIZE = 40
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 5e-324, 1e-300, 1e-5, 1e-4, 1.0, 1e30, 1e38, 1e300]) | st.floats(0, 3),
    top_p=st.sampled_from([1.0, 1e-300, 5e-324]) | st.floats(0, 1, exclude_min=True),
    top_k=st.sampled_from([0, 1, SIZE, MAX_TOP_K]),
    min_p=st.sampled_from([0.0, 5e-324, 1.0]) | st.floats(0, 1),
    seed=st.sampled_from([0, -(2**63), 2**64 - 1]) | st.integers(-(2**63), 2**64 - 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.sampled_from([1.0, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY])
    | st.floats(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    logprobs=st.sampled_from([None, 0, 1, 20]),
)
LARGEST = float(torch.finfo(torch.float32).max)
VALUES = st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 65504.0, -65504.0, 3.38e38, LARGEST, -LARGEST]
) | st.floats(-30, 30, width=32)
LOGITS = st.one_of(
    st.lists(VALUES, min_size=SIZE, max_size=SIZE),
    VALUES.map(lambda value: [value] * SIZE),
    st.tuples(VALUES, VALUES).map(lambda two: [two[0], *[two[1]] * (SIZE - 1)]),
    st.lists(VALUES | st.just(-math.inf), min_size=SIZE, max_size=SIZE),
    st.lists(st.sampled_from([math.nan, math.inf, -math.inf, 0.0]), min_size=SIZE, max_size=SIZE),
)
TOKENS = st.lists(st.integers(0, SIZE - 1), max_size=60)
BANNED = st.one_of(
    st.just(()),
    st.lists(st.integers(-3, SIZE + 3), max_size=8).map(tuple),
    st.integers(0, 3).map(lambda left: tuple(range(SIZE - left))),
)


@settings(max_examples=800, deadline=None)
@given(params=PARAMS, scores=LOGITS, prompt=TOKENS, generated=TOKENS, banned=BANNED)
def test_whatever_is_asked_for_a_token_of_the_vocabulary_comes_or_a_sentence(
    params: SamplingParams,
    scores: list[float],
    prompt: list[int],
    generated: list[int],
    banned: tuple[int, ...],
) -> None:
    check_sampling(params, 20)
    try:
        chosen = sample(
            torch.tensor(scores, dtype=torch.float32),
            params,
            len(generated),
            np.array(prompt, dtype=np.uint32),
            generated,
            banned,
        )
    except WaveppError:
        # Only if there is nothing to choose from.
        numbers = all(value < math.inf for value in scores)
        left = [t for t, value in enumerate(scores) if t not in banned and value > -math.inf]
        assert not numbers or not left
        return
    assert 0 <= chosen.token < SIZE
    assert chosen.token not in banned
    assert scores[chosen.token] > -math.inf
    reported = [] if chosen.logprob is None else [chosen.logprob, *(value for _, value in chosen.top)]
    assert all(math.isfinite(value) and value <= 0 for value in reported)
    assert len(chosen.top) == (params.logprobs or 0)


def test_extremes_leave_a_token_of_the_vocabulary() -> None:
    for params in ({"top_p": 1e-9}, {"top_k": 10**9}, {"min_p": 1.0}):
        assert 0 <= draws(logits(1), 1, **params)[0] < 50


def test_without_a_seed_nothing_is_drawn() -> None:
    with pytest.raises(WaveppError, match="resolve_seed"):
        sample(logits(0), SamplingParams(temperature=1.0), 0, NOTHING, [])


def mask(*tokens: int, size: int = 50) -> bytes:
    bits = np.zeros(size, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def test_only_what_a_mask_allows_is_chosen() -> None:
    scores = logits(3)
    order = torch.argsort(scores, descending=True).tolist()
    allowed = mask(*order[5:])
    assert sample(scores, SamplingParams(), 0, NOTHING, [], allowed=allowed).token == order[5]
    banned = (order[5], order[7])
    assert sample(scores, SamplingParams(), 0, NOTHING, [], banned=banned, allowed=allowed).token == order[6]
    seeded = SamplingParams(temperature=1.0, top_k=3, seed=1)
    drawn = {sample(scores, seeded, step, NOTHING, [], allowed=allowed).token for step in range(100)}
    assert drawn == set(order[5:8]), "the best three of those that are allowed"
    reported = sample(scores, SamplingParams(logprobs=1), 0, NOTHING, [], allowed=allowed)
    assert reported.top[0][0] == order[0], "logprobs are of what the model says"


def test_a_mask_may_be_longer_than_the_vocabulary_and_not_shorter() -> None:
    assert sample(logits(3), SamplingParams(), 0, NOTHING, [], allowed=mask(7, 60, size=64)).token == 7
    with pytest.raises(WaveppError, match="bits for 48 tokens, and the model 50"):
        sample(logits(3), SamplingParams(), 0, NOTHING, [], allowed=mask(7, size=48))
    with pytest.raises(WaveppError, match="does not go on to what the answer must match"):
        sample(logits(3), SamplingParams(), 0, NOTHING, [], banned=(7,), allowed=mask(7))


def test_biases_are_added_before_all_else() -> None:
    scores = logits(4)
    order = torch.argsort(scores, descending=True).tolist()

    def greedy(*biases: tuple[int, float], **params: Any) -> int:
        chosen = SamplingParams(logit_bias=biases, **params)
        return sample(scores, chosen, 0, np.array([order[0]], np.uint32), []).token

    assert greedy((order[0], -100.0)) == order[1]
    assert greedy((order[30], 100.0)) == order[30]
    assert greedy((order[30], 50.0), (order[30], 50.0), (order[3], 90.0)) == order[30], "summed up"
    assert greedy((50, 100.0), (2**40, 100.0)) == order[0], "no token of this vocabulary"
    assert greedy((order[0], 100.0), repetition_penalty=1000.0) == order[1], "and penalised afterwards"
    reported = sample(scores, SamplingParams(logit_bias=((order[9], 100.0),), logprobs=1), 0, NOTHING, [])
    assert (reported.token, reported.top[0][0]) == (order[9], order[0]), "logprobs are of what the model says"
    impossible = scores.clone()
    impossible[order[5]] = -math.inf
    assert (
        sample(impossible, SamplingParams(logit_bias=((order[5], 100.0),)), 0, NOTHING, []).token == order[0]
    )
