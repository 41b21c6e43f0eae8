"""Variables that Dynamo takes defaults of its flags from."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from wavepp_worker.dynamo.agg import AggArgs
from wavepp_worker.dynamo.dynamos_flags import add_dynamos_flags
from wavepp_worker.dynamo.frontend import FrontendArgs
from wavepp_worker.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DYN_HTTP_PORT", "abc", "invalid literal for int() with base 10: 'abc'"),
        ("DYN_HTTP_PORT", "", "invalid literal for int() with base 10: ''"),
        ("DYN_ROUTER_TEMPERATURE", "hot", "could not convert string to float: 'hot'"),
        ("DYN_MODEL_PATH", "/nowhere", "model-path must be a valid directory on disk, got: /nowhere"),
    ],
)
def test_a_frontend_names_the_variable(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        FrontendArgs.parse([])
    assert str(caught.value) == f"{name}: has a value that Dynamo does not take: {said}"


def test_so_does_a_worker_and_all_that_it_may_be(monkeypatch: pytest.MonkeyPatch, tiny_llama: Path) -> None:
    monkeypatch.setenv("DYN_ENGINE_REQUEST_LIMIT", "many")
    monkeypatch.setenv("DYN_HTTP_PORT", "many")
    with pytest.raises(ConfigError, match=r"^DYN_ENGINE_REQUEST_LIMIT or DYN_HTTP_PORT: has a value that "):
        AggArgs.parse([f"--model={tiny_llama}"])


def test_a_complaint_of_another_kind_is_told_all_the_same() -> None:
    class Group:
        def add_arguments(self, parser: argparse.ArgumentParser) -> None:
            raise ValueError("no")

    with pytest.raises(ConfigError, match=r"^one of Dynamo's own variables, DYN_\.\.\.: has a value .*: no$"):
        add_dynamos_flags(argparse.ArgumentParser(), Group())
