from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError

import pytest
from wavepp_worker import dynamo_version
from wavepp_worker.dynamo_version import dynamo_is_at_least


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    dynamo_is_at_least.cache_clear()
    yield
    dynamo_is_at_least.cache_clear()


@pytest.mark.parametrize(
    ("found", "is_so"), [("1.4.2", False), ("1.5.0", True), ("1.10.0rc1", True), ("2.0", True)]
)
def test_versions_are_compared_by_numbers(monkeypatch: pytest.MonkeyPatch, found: str, is_so: bool) -> None:
    monkeypatch.setattr(dynamo_version, "version", lambda name: found)
    assert dynamo_is_at_least(1, 5) is is_so


def test_no_dynamo_is_older_than_any(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(dynamo_version, "version", missing)
    assert not dynamo_is_at_least(0, 1)
