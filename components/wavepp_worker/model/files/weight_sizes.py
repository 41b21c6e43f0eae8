"""How large the parts of a model are, from its files' headers alone. Needs no tensor library."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wavepp_worker.model.files.checkpoint import read_json, tensor_entries
from wavepp_worker.model.files.quantisation import scheme_of, stored_weights
from wavepp_worker.model.timed.timed_model import is_timed

_LAYER = re.compile(r"\blayers\.(\d+)\.")


@dataclass(frozen=True)
class WeightSizes:
    """Numbers in each part of a model, as a stage keeps them: quantised weights are expanded.

    Attributes:
        layer: in the largest layer.
        layers: in all layers.
        ends: in embedding, head and what else is on the first or the last stage.
        width: that a token's activations are at their widest, in a layer.
    """

    layer: int
    layers: int
    ends: int
    width: int


def has_weights(model_dir: Path) -> bool:
    """Whether there are weights to look at: not of a timed model, nor before the default one is made."""
    return model_dir.is_dir() and not is_timed(model_dir)


@cache
def weight_sizes(model_dir: Path) -> WeightSizes:
    """Look at the headers of a Hugging Face directory's weights.

    Raises:
        ConfigError: a file is missing or damaged; names ``model``.
    """
    config = read_json(model_dir / "config.json")
    # What is stored beyond the last layer, such as layers that predict several tokens, no stage loads.
    last = config.get("num_hidden_layers")
    layers: Counter[int] = Counter()
    embedding = ends = 0
    has_head = False
    for name, weight in stored_weights(scheme_of(config), tensor_entries(model_dir)).items():
        if (match := _LAYER.search(name)) is not None:
            if not isinstance(last, int) or int(match[1]) < last:
                layers[int(match[1])] += weight.numbers
        else:
            ends += weight.numbers
            embedding += weight.numbers if "embed" in name else 0
            has_head = has_head or name.startswith("lm_head")
    widths = (config.get("hidden_size"), config.get("intermediate_size"))
    return WeightSizes(
        layer=max(layers.values(), default=0),
        layers=layers.total(),
        # A head that shares the embedding's weights has them a second time where it is on another stage.
        ends=ends + (0 if has_head else embedding),
        width=sum(width for width in widths if isinstance(width, int)),
    )
