"""What each kind of window needs, asked of the window that its spec makes."""

from __future__ import annotations

import pytest
from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.cache.windows.kinds import KINDS, make_window
from wavepp_worker.cache.windows.recurrent import RecurrentWindow
from wavepp_worker.cache.windows.window import Window
from wavepp_worker.errors import ConfigError

BLOCK = 4


def window(kind: str, blocks: int = 8, **fields: int) -> Window:
    return make_window(0, WindowSpec("w", kind, blocks, **fields), BLOCK, HintIndex())


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_names_its_class(kind: str) -> None:
    made = window(kind, span=1)
    assert type(made) is KINDS[kind]
    assert made.prefix_tree == (kind == "full")
    assert made.needed(0) == range(0)


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"of kind 'latent'; choose one of full, sliding, recurrent"):
        window("latent")


@pytest.mark.parametrize(
    ("fields", "end", "needed"),
    [
        ({"kind": "full"}, 5, [0, 1, 2, 3, 4]),
        ({"kind": "sliding", "span": 1}, 5, [4]),
        ({"kind": "sliding", "span": 4}, 5, [4]),
        ({"kind": "sliding", "span": 5}, 5, [3, 4]),
        ({"kind": "sliding", "span": 100}, 5, [0, 1, 2, 3, 4]),
        ({"kind": "recurrent"}, 5, [4]),
    ],
)
def test_what_resuming_needs(fields: dict[str, int], end: int, needed: list[int]) -> None:
    assert list(window(**fields).needed(end)) == needed  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "new"), [("full", 4), ("sliding", 4), ("recurrent", 1)])
def test_what_running_takes(kind: str, new: int) -> None:
    """17 tokens of which 4 are reused: 4 more blocks of 4, or a working state."""
    assert window(kind, span=1).new_blocks(1, 17) == new


@pytest.mark.parametrize(
    ("end", "prompt_tokens", "blocks", "most", "positions"),
    [
        (0, 25, 8, None, [8, 16, 24]),
        (0, 24, 8, None, [8, 16]),
        (2, 25, 8, None, [16, 24]),
        (3, 25, 8, None, [16, 24]),
        (0, 25, 8, 2, [16, 24]),
        (0, 25, 3, None, [16, 24]),
        (2, 25, 3, None, [24]),
        (0, 25, 1, None, []),
    ],
)
def test_snapshots_are_taken_at_the_latest_positions_that_fit(
    end: int, prompt_tokens: int, blocks: int, most: int | None, positions: list[int]
) -> None:
    spec = WindowSpec("w", "recurrent", blocks, interval=8, max_snapshots=most)
    made = make_window(0, spec, BLOCK, HintIndex())
    assert isinstance(made, RecurrentWindow)
    assert list(made.snapshot_positions(end, prompt_tokens)) == positions
    assert made.new_blocks(end, prompt_tokens) == 1 + len(positions)


def test_a_floor_of_token_blocks_asks_nothing_of_states() -> None:
    assert window("recurrent").has_room(8, headroom=5)
    assert not window("recurrent").has_room(9, headroom=0)
    assert not window("full").has_room(8, headroom=1)
    assert window("sliding", span=1).has_room(7, headroom=1)
