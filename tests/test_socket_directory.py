"""Where sockets between processes are, and what is said where their paths would be too long."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import zmq
from wavepp_worker.errors import ConfigError
from wavepp_worker.socket_directory import LONGEST_NAME, make_socket_directory


def test_a_socket_with_the_longest_name_is_bound_in_the_longest_directory_there_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as short:
        base = Path(short) / ("l" * (80 - len(short) - 1))
        base.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(base))
        directory = make_socket_directory()
        assert directory.parent == base
        assert directory.stat().st_mode & 0o077 == 0
        with zmq.Context() as context, context.socket(zmq.PULL) as socket:
            socket.bind(f"ipc://{directory}/{'n' * LONGEST_NAME}")
        monkeypatch.setattr(tempfile, "tempdir", str(base) + "l")
        with pytest.raises(
            ConfigError, match=r"^TMPDIR: /tmp/.* is 81 bytes long, .*at most 80 bytes, such as /tmp"
        ):
            make_socket_directory()
