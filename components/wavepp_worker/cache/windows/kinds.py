"""Which class each kind of window is: a new kind is a class of its own and a line here."""

from __future__ import annotations

from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.cache.windows.full import FullWindow
from wavepp_worker.cache.windows.recurrent import RecurrentWindow
from wavepp_worker.cache.windows.sliding import SlidingWindow
from wavepp_worker.cache.windows.window import Window
from wavepp_worker.errors import ConfigError

KINDS: dict[str, type[Window]] = {
    "full": FullWindow,
    "sliding": SlidingWindow,
    "recurrent": RecurrentWindow,
}


def make_window(number: int, spec: WindowSpec, block_size: int, index: HintIndex) -> Window:
    """The window that ``spec`` describes; see ``Window``.

    Raises:
        ConfigError: there is no such kind, or the window cannot work.
    """
    kind = KINDS.get(spec.kind)
    if kind is None:
        raise ConfigError(f"window {spec.name} is of kind {spec.kind!r}; choose one of {', '.join(KINDS)}")
    return kind(number, spec, block_size, index)
