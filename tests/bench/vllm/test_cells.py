"""What each cell of the comparison with vLLM asks."""

from __future__ import annotations

import pytest

from bench.vllm.cells import traffic_of


@pytest.mark.parametrize(
    ("cell", "clients", "known", "prompts", "length", "distinct"),
    [
        ("cold:100:4:9", 4, 0, 9, 100, 9),
        ("reuse:100:4:9", 4, 1, 9, 100, 1),
        ("reuse:100:4:30:2", 4, 2, 30, 100, 2),
        ("suffix:96:4:3:30:2", 3, 2, 30, 100, 2),
        ("burst:96:4:3:30:2", 3, 0, 30, 100, 2),
    ],
)
def test_a_cell_has_as_many_prompts_and_prefixes_as_it_says(
    cell: str, clients: int, known: int, prompts: int, length: int, distinct: int
) -> None:
    traffic = traffic_of(cell, 7, 1000)
    assert (traffic.clients, len(traffic.known), len(traffic.prompts)) == (clients, known, prompts)
    assert {len(prompt) for prompt in traffic.prompts} == {length} == {traffic.longest}
    assert len({tuple(prompt[: length * 9 // 10]) for prompt in traffic.prompts}) == distinct
    assert len({tuple(prompt) for prompt in traffic.prompts}) == prompts
    assert all(
        any(prompt[: len(each)] == each for each in traffic.known) for prompt in traffic.prompts
    ) == bool(known)
    assert traffic_of(cell, 7, 1000) == traffic
    assert traffic_of(cell, 8, 1000) != traffic


@pytest.mark.parametrize(
    "cell", ["", "cold", "cold:1:2", "cold:1:2:3:4", "cold:a:2:3", "cold:0:2:3", "warm:1:2:3"]
)
def test_what_is_no_cell_is_refused(cell: str) -> None:
    with pytest.raises(ValueError, match="is no cell; give one like"):
        traffic_of(cell, 7, 1000)


def test_mixed_prompts_are_of_many_lengths_up_to_the_longest() -> None:
    lengths = [len(prompt) for prompt in traffic_of("mixed:6400:4:50", 7, 1000).prompts]
    assert all(100 <= length <= 6400 for length in lengths)
    assert sum(length < 800 for length in lengths) in range(15, 36), "each doubling is as likely as the next"
