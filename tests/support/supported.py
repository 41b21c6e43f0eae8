"""The table of supported models in README.md: ``python -m tests.support.supported`` prints it.

Its rows are the models that ``tests/model/test_packing.py`` runs, and what their layers are is asked of the code.
"""

from __future__ import annotations

from transformers import AutoConfig
from wavepp_worker.model.architecture import model_caches

from tests.model.test_packing import FAMILIES
from tests.support import tiny_models

WORDS = {
    "full_attention": "full attention",
    "sliding_attention": "sliding window",
    "latent_attention": "latent attention (MLA)",
    "indexed_latent_attention": "MLA with a sparse indexer",
    "shared_index_latent_attention": "MLA that shares picks",
    "gated_delta_net": "gated DeltaNet",
    "kimi_delta_attention": "KDA",
}
HEADER = "| `model_type` | kinds of layers | what a layer keeps of a token, or as its state |\n|---|---|---|"


def table() -> str:
    """The table's lines."""
    return "\n".join([HEADER, *sorted({_row(family) for family in FAMILIES})])


def _row(family: str) -> str:
    values = {**tiny_models._SMALL, **tiny_models.FAMILIES[family]}
    if values["head_dim"] is None:
        del values["head_dim"]
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    kinds = {cache.kind: cache for cache in model_caches(config)}
    kept = dict.fromkeys(", ".join(tensor.name for tensor in cache.tensors) for cache in kinds.values())
    return f"| {config.model_type} | {', '.join(WORDS[kind] for kind in kinds)} | {'; '.join(kept)} |"


if __name__ == "__main__":
    print(table())
