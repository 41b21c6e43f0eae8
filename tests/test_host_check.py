"""Where a hand-off can listen."""

from __future__ import annotations

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.host_check import check_host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost", "0.0.0.0"])
def test_addresses_of_this_machine(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("203.0.113.7", "host: 203.0.113.7 is not an address of this machine"),
        ("no.such.host.invalid", "host: 'no.such.host.invalid' is no host name or address"),
        ("a" * 300, "host: 'aaa"),
    ],
)
def test_others_are_refused(host: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_host(host)
    assert str(caught.value).startswith(sentence)
