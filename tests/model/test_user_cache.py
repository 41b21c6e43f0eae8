from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.model.user_cache import cache_root


def test_the_cache_is_the_users_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WAVEPP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "wavepp"
    monkeypatch.setenv("WAVEPP_CACHE", "~/elsewhere")
    assert cache_root() == Path.home() / "elsewhere"
