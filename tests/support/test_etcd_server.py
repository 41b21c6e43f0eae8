"""Whether a test that needs etcd is left out without it."""

from __future__ import annotations

import pytest

from tests.support import etcd_server
from tests.support.etcd_server import NEEDED, require_etcd


def test_without_etcd_a_test_is_left_out_or_fails_where_that_must_not_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(etcd_server, "BINARY", None)
    monkeypatch.delenv(NEEDED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt install etcd-server"):
        require_etcd()
    monkeypatch.setenv(NEEDED, "1")
    with pytest.raises(pytest.fail.Exception, match="apt install etcd-server"):
        require_etcd()
    monkeypatch.setattr(etcd_server, "BINARY", "/usr/bin/etcd")
    require_etcd()
