"""Fixtures that several rooms share: tiny models with random weights, made once per run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from wavepp_worker.runtime.client import rank_processes

from tests.support import tiny_models
from tests.support.reference import Reference
from tests.support.warm_processes import WarmPopen, WarmSubprocess

GRAPHS, MIDDLE = "tests/e2e/", "tests/e2e/test_planes.py"
"""Half of what graphs take comes before this file."""

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``: a file's tests share a process and its fixtures, and no more than two whole graphs run at once."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            if not file.startswith(GRAPHS):
                return file
            return "graphs" if file < MIDDLE else "more graphs"

    return Files(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole graphs come first: they take longest, and mostly wait."""
    items.sort(key=lambda item: not item.nodeid.startswith(GRAPHS))


@pytest.fixture(scope="module", autouse=True)
def spared_by_the_collector() -> None:
    """What there is before a file's tests: looking through it again and again is a fifth of their time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def warm_ranks() -> Iterator[None]:
    """Ranks of this process's engines begin with torch imported; those of other programs if started so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_processes, "subprocess", WarmSubprocess)
        yield
    WarmPopen.nursery.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Call with a family's name for the directory of a tiny model of it."""
    root = tmp_path_factory.mktemp("models")
    made: dict[str, Path] = {}

    def directory(family: str) -> Path:
        if family not in made:
            made[family] = tiny_models.make_model(root / family, family)
        return made[family]

    return directory


@pytest.fixture(scope="session")
def tiny_llama(tiny_model: Callable[[str], Path]) -> Path:
    """6 layers, hidden 64, 4 query and 2 key heads, 300 tokens, 8192 positions, untied."""
    return tiny_model("llama")


@pytest.fixture(scope="session")
def reference(tiny_llama: Path) -> Reference:
    """transformers' ``tiny_llama``."""
    return Reference(tiny_llama)


@pytest.fixture(scope="session")
def tiny_qwen3(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("qwen3")


@pytest.fixture(scope="session")
def tiny_tied(tiny_model: Callable[[str], Path]) -> Path:
    """The output head shares the embedding's weights."""
    return tiny_model("tied")


@pytest.fixture(scope="session")
def tiny_moe(tiny_model: Callable[[str], Path]) -> Path:
    """Mixture of experts."""
    return tiny_model("qwen3_moe")


@pytest.fixture(scope="session")
def tiny_mla(tiny_model: Callable[[str], Path]) -> Path:
    """Latent attention (DeepSeek)."""
    return tiny_model("deepseek_v3")
