"""Fixtures of tests that start engines."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def scratch() -> Iterator[Path]:
    """An empty directory with a path short enough for sockets, as that of ``tmp_path`` may not be."""
    with tempfile.TemporaryDirectory(prefix="wavepp-test-", dir="/tmp") as directory:
        yield Path(directory)
