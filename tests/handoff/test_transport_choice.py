"""Which transport a configuration means, with and without NIXL."""

from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.handoff.transport_choice import resolve_transport


@pytest.mark.parametrize("installed", [True, False])
def test_resolve(monkeypatch: Any, installed: bool) -> None:
    monkeypatch.setattr("wavepp_worker.handoff.transport_choice.nixl_installed", lambda: installed)
    assert resolve_transport("none") == "none"
    assert resolve_transport("socket") == "socket"
    assert resolve_transport("auto") == ("nixl" if installed else "socket")
    with pytest.raises(ConfigError, match="handoff is 'carrier pigeon'; choose none, socket, nixl or auto"):
        resolve_transport("carrier pigeon")
    if installed:
        assert resolve_transport("nixl") == "nixl"
    else:
        with pytest.raises(
            ConfigError, match=r"handoff is nixl, but NIXL is not installed: .* nixl-cu12, or set"
        ):
            resolve_transport("nixl")
