from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.reference import Reference
from tests.support.tiny_models import make_model


@pytest.fixture
def scratch() -> Iterator[Path]:
    """An empty directory with a path short enough for sockets, as that of ``tmp_path`` may not be."""
    with tempfile.TemporaryDirectory(prefix="wavepp-test-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def deep_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``tiny_llama``, with 8 layers."""
    return make_model(tmp_path_factory.mktemp("deep") / "llama", num_hidden_layers=8)


@pytest.fixture(scope="session")
def deep_reference(deep_llama: Path) -> Reference:
    return Reference(deep_llama)
