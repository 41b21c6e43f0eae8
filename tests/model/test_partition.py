from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_info import ModelInfo
from wavepp_worker.model.partition import partition_layers


def model(layer_costs: list[float], embedding: float = 0.0, head: float = 0.0) -> ModelInfo:
    return ModelInfo(
        path=Path(),
        model_id="0" * 32,
        num_layers=len(layer_costs),
        vocab_size=10,
        hidden_size=4,
        context_length=64,
        eos_token_ids=(9,),
        dtype="float32",
        layer_costs=tuple(layer_costs),
        embedding_cost=embedding,
        head_cost=head,
    )


def stage_costs(info: ModelInfo, sizes: tuple[int, ...]) -> list[float]:
    ends = list(itertools.accumulate(sizes))
    costs = [sum(info.layer_costs[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    costs[0] += info.embedding_cost
    costs[-1] += info.head_cost
    return costs


@settings(deadline=None, max_examples=40)
@given(
    costs=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    ends=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    data=st.data(),
)
def test_slowest_stage_is_as_fast_as_possible(
    costs: list[int], ends: tuple[int, int], data: st.DataObject
) -> None:
    info = model([float(c) for c in costs], *map(float, ends))
    pp = data.draw(st.integers(1, len(costs)))
    ranges = partition_layers(info, pp, None)
    assert [i for r in ranges for i in r] == list(range(len(costs)))
    assert len(ranges) == pp
    assert all(len(r) >= 1 for r in ranges)
    divisions = [
        sizes for sizes in itertools.product(range(1, len(costs) + 1), repeat=pp) if sum(sizes) == len(costs)
    ]
    least = min(max(stage_costs(info, sizes)) for sizes in divisions)
    assert max(stage_costs(info, tuple(len(r) for r in ranges))) == pytest.approx(least)


@pytest.mark.parametrize(("layers", "pp"), [(30, 4), (9, 4), (11, 4), (7, 5), (6, 6), (5, 1)])
def test_equal_layers_divide_evenly(layers: int, pp: int) -> None:
    sizes = [len(r) for r in partition_layers(model([1.0] * layers), pp, None)]
    assert max(sizes) - min(sizes) <= 1


def test_head_and_embedding_take_layers_off_their_stages() -> None:
    even = model([1.0] * 12)
    assert [len(r) for r in partition_layers(replace(even, head_cost=3.0), 3, None)] == [5, 5, 2]
    assert [len(r) for r in partition_layers(replace(even, embedding_cost=3.0), 3, None)] == [2, 5, 5]


def test_stages_that_are_not_the_slowest_are_alike_too() -> None:
    sizes = [len(r) for r in partition_layers(model([10.0] + [1.0] * 6), 3, None)]
    assert sizes == [1, 3, 3]


def test_explicit_partition() -> None:
    assert partition_layers(model([1.0] * 6), 3, (3, 1, 2)) == (range(0, 3), range(3, 4), range(4, 6))


@pytest.mark.parametrize(
    ("pp", "partition", "says"),
    [
        (0, None, "pp: .* from 1 to 6"),
        (7, None, "pp: 7 stages cannot share 6 layers"),
        (2, (3, 1, 2), "partition: 3,1,2 names 3 stages but pp is 2"),
        (2, (6, 0), "partition: .*without layers"),
        (2, (-1, 7), "partition: .*without layers"),
        (2, (3, 4), "partition: .*adds up to 7 layers but the model has 6"),
        (1, (), "partition: "),
    ],
)
def test_refusals_name_the_key(pp: int, partition: tuple[int, ...] | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        partition_layers(model([1.0] * 6), pp, partition)
