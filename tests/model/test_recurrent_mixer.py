"""Recurrent layers: any snapshot plan resumes with the logits of the straight run, and requests stay apart."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.stage import Chunk

from tests.support.pipeline import Pipeline

FAMILIES = ("qwen3_next", "kimi_linear")
TOLERANCE = 5e-4
LAYERS = 6
STATES = 96


def prompt(length: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 297, (length,), generator=torch.Generator().manual_seed(seed))


@dataclass
class Prompt:
    """One that is under way: its next token, and where it leaves snapshots."""

    tokens: torch.Tensor
    at: int
    snapshots: dict[int, int]


class Plans:
    """Draws snapshot plans for one model, and checks the logits of every chunk against one plain forward."""

    def __init__(
        self, seed: int, stages: Callable, plain: Callable, model: Path, tolerance: float = TOLERANCE
    ) -> None:
        self._draw, self._tolerance = random.Random(seed), tolerance
        self._plain, self._model = plain, model
        cuts = self._draw.sample(range(1, LAYERS), self._draw.randrange(4))
        self._block = self._draw.choice((1, 2, 4))
        self._pipe = Pipeline(
            stages(model, (*sorted(cuts), LAYERS)), self._block, blocks=1200, seed=seed, states=STATES
        )
        for kv in self._pipe.kvs:
            if kv.states is not None:
                # No state that nobody wrote may count: these are not numbers.
                rows = torch.full((STATES, kv.states.block_bytes), 0xFF, dtype=torch.uint8)
                kv.states.import_blocks(torch.arange(STATES), rows)
        # Requests run in the states of their numbers.
        self._requests, self._snapshots = iter(range(40)), iter(range(40, STATES))

    def run(self) -> int:
        """Cold prompts, then those that resume at each snapshot, then at each of theirs; returns how many resumed."""
        draw, resumed = self._draw, 0
        layer = {next(self._requests): self._cold(5) for _ in range(draw.randrange(1, 4))}
        for number, begun in layer.items():
            self._pipe.admit(number, len(begun.tokens))
        for most in (2, 1, 0):
            self._compute(layer)
            following = {}
            for number, ended in layer.items():
                for at, state in ended.snapshots.items():
                    other = next(self._requests)
                    following[other] = self._resuming(ended, at, most)
                    self._pipe.fork(other, number, at, len(following[other].tokens), state)
            layer = following
            resumed += len(following)
        return resumed

    def _cold(self, most: int) -> Prompt:
        tokens = prompt(self._draw.randrange(2, 40), self._draw.randrange(100))
        return Prompt(tokens, 0, self._places(0, len(tokens), most))

    def _resuming(self, ended: Prompt, at: int, most: int) -> Prompt:
        tokens = ended.tokens
        if at == len(tokens) or self._draw.random() < 0.3:
            tokens = torch.cat([tokens[:at], prompt(self._draw.randrange(1, 20), self._draw.randrange(100))])
        return Prompt(tokens, at, self._places(at, len(tokens), most))

    def _places(self, start: int, end: int, most: int) -> dict[int, int]:
        ends = range((start // self._block + 1) * self._block, end + 1, self._block)
        chosen = self._draw.sample(ends, min(len(ends), self._draw.randrange(most + 1)))
        return {at: next(self._snapshots) for at in sorted(chosen)}

    def _compute(self, prompts: dict[int, Prompt]) -> None:
        wanted = {number: self._plain(self._model, each.tokens) for number, each in prompts.items()}
        self._pipe.snapshots.update({number: each.snapshots for number, each in prompts.items()})
        while left := [number for number, each in prompts.items() if each.at < len(each.tokens)]:
            chosen = self._draw.sample(left, self._draw.randrange(1, len(left) + 1))
            parts = []
            for number in chosen:
                each = prompts[number]
                length = self._draw.choice((1, self._draw.randrange(1, 30), 40))
                parts.append((number, each.at, each.tokens[each.at : each.at + length], True))
            for row, (number, start, tokens, _) in zip(self._pipe.run(parts), parts, strict=True):
                prompts[number].at = start + len(tokens)
                assert (row - wanted[number][prompts[number].at - 1]).abs().max() < self._tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_resuming_at_any_snapshot_of_any_plan_equals_the_straight_run(
    family: str, tiny_model: Callable, stages: Callable, plain: Callable
) -> None:
    model = tiny_model(family)
    assert sum(Plans(seed, stages, plain, model).run() for seed in range(6)) > 10


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100, 500, 50))
@pytest.mark.parametrize("family", FAMILIES)
def test_hundreds_of_snapshot_plans(
    family: str, first: int, tiny_model: Callable, stages: Callable, plain: Callable
) -> None:
    model = tiny_model(family)
    # Of thousands of prompts some have inputs to a norm near 0: there plain float32 is off by 3e-4 already, against
    # float64, for one in a hundred. A state that is another's is off by a hundred times as much.
    tolerance = 4 * TOLERANCE
    assert sum(Plans(seed, stages, plain, model, tolerance).run() for seed in range(first, first + 50)) > 125


def test_a_mixer_that_would_take_much_memory_for_long_chunks_gets_short_ones(
    tiny_model: Callable, stages: Callable, plain: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("kimi_linear")
    pipe = Pipeline(stages(model, (LAYERS,)), 16, blocks=20)
    mixer = pipe.stages[0]._model.base_model.layers[0].self_attn.inner  # type: ignore[attr-defined]
    lengths: list[int] = []
    monkeypatch.setattr(
        mixer,
        "forward",
        lambda hidden, **given: (
            lengths.append(hidden.shape[1]) or type(mixer).forward(mixer, hidden, **given)
        ),
    )
    pipe.admit(0, 150)
    pipe.snapshots = {0: {80: 5}}
    tokens = prompt(150, 3)
    (row,) = pipe.run([(0, 0, tokens, True)])
    assert lengths == [64, 16, 48, 22]
    assert (row - plain(model, tokens)[-1]).abs().max() < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_single_tokens_leaves_snapshots_as_well(
    family: str, tiny_model: Callable, stages: Callable, plain: Callable
) -> None:
    """Two requests, token by token, the second one behind: their steps are batches, and one snapshot lies in each."""
    model = tiny_model(family)
    prompts = [prompt(8, 1), prompt(6, 2)]
    pipe = Pipeline(stages(model, (2, LAYERS)), 1, blocks=60)
    pipe.snapshots = {0: {6: 5}, 1: {4: 6}}
    for number, tokens in enumerate(prompts):
        pipe.admit(number, len(tokens))
        pipe.run([(number, 0, tokens[: 4 - 2 * number], False)])
    for step in range(4):
        pipe.run([(n, at, prompts[n][at : at + 1], True) for n, at in ((0, 4 + step), (1, 2 + step))])
    for number, at, state in ((0, 6, 5), (1, 4, 6)):
        pipe.fork(2 + number, number, at, len(prompts[number]), state)
        (row,) = pipe.run([(2 + number, at, prompts[number][at:], True)])
        assert (row - plain(model, prompts[number])[-1]).abs().max() < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_of_one_kind_of_layers_keep_only_what_they_need(
    family: str, tiny_model: Callable, stages: Callable
) -> None:
    recurrent, attention = (2, 3) if family == "qwen3_next" else (1, 2)
    first, second, _ = stages(tiny_model(family), (recurrent, attention, LAYERS))
    states, keys = first.make_kv(10, 4, 3), second.make_kv(10, 4, 3)
    assert states.bytes_per_token == states.block_bytes == 0
    assert states.states.block_bytes > 0
    assert states.regions() == [states.states.whole()]
    assert keys.bytes_per_token > 0
    assert keys.states is None
    assert first.recurrent
    assert not second.recurrent


def test_a_state_takes_the_bytes_of_its_convolution_and_its_matrices(
    tiny_model: Callable, stages: Callable
) -> None:
    """Per layer: 3 inputs of 2 x 2 x 16 + 4 x 12 channels, and 4 heads of 16 x 12, all in float32."""
    (whole,) = stages(tiny_model("qwen3_next"), (LAYERS,))
    assert whole.make_kv(1, 4, 1).states.block_bytes == 4 * (3 * 112 + 4 * 16 * 12) * 4
    (whole,) = stages(tiny_model("kimi_linear"), (LAYERS,))
    assert whole.make_kv(1, 4, 1).states.block_bytes == 4 * (3 * 3 * 3 * 8 + 3 * 8 * 8) * 4


def test_a_chunk_without_a_state_is_refused(tiny_model: Callable, stages: Callable) -> None:
    (whole,) = stages(tiny_model("qwen3_next"), (LAYERS,))
    with pytest.raises(WaveppError, match="a chunk of the wave comes without a state"):
        whole.forward(prompt(3, 0), [Chunk(0, 3, torch.arange(1), True)], whole.make_kv(1, 4, 1))
