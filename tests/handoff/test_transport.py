"""Transports with and without NIXL."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from wavepp_worker.errors import ConfigError
from wavepp_worker.handoff.nixl import library
from wavepp_worker.handoff.transport import make_source

from tests.support.handoff_sides import HOST, FakeKV


def test_nixl_that_does_not_load_is_a_sentence(monkeypatch: Any) -> None:
    monkeypatch.setattr(library, "_PACKAGES", ("no_such_nixl",))
    assert not library.nixl_installed()
    with pytest.raises(ConfigError, match=r"NIXL cannot be loaded \(No module named 'no_such_nixl'\)"):
        make_source(
            "nixl",
            rank=0,
            host=HOST,
            kv=FakeKV(range(1), 4, 4),
            dtype=torch.float32,
            timeout=1.0,
            on_settled=print,
        )


@pytest.mark.parametrize(
    ("host", "chosen", "devices"),
    [
        ("127.0.0.1", None, "lo"),
        ("::1", None, "lo"),
        ("localhost", None, "lo"),
        ("127.0.0.1", "eth7", "eth7"),
        ("192.0.2.7", None, None),
    ],
)
def test_nixl_listens_on_loopback_alone_if_its_process_does(
    monkeypatch: Any, host: str, chosen: str | None, devices: str | None
) -> None:
    """Its UCX would listen on every network device."""
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("UCX_NET_DEVICES", chosen)
    monkeypatch.setattr(library, "_PACKAGES", ())
    with pytest.raises(ConfigError):
        library.load_nixl(host)
    assert os.environ.pop("UCX_NET_DEVICES", None) == devices
