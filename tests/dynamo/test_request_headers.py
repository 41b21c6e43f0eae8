from __future__ import annotations

import pytest
from multidict import CIMultiDict
from wavepp_worker.dynamo.request_headers import HOP_BY_HOP, passed_on, unclear_header


@pytest.mark.parametrize("name", ["x-tenant-id", "x-dynamo-request-id", "x-wavepp-choice"])
def test_what_is_checked_is_given_once_however_it_is_spelled(name: str) -> None:
    """Else one value could be checked and another passed on, which puts a request among another tenant's."""
    assert unclear_header(CIMultiDict([(name.upper(), "a"), ("x-other", "b"), ("x-other", "c")])) is None
    sentence = unclear_header(CIMultiDict([(name, "a"), (name.title(), "a")]))
    assert sentence == f"the header {name} is given twice; give it once"


def test_bytes_that_are_no_utf8_are_named() -> None:
    assert unclear_header(CIMultiDict([("x-mark", "é")])) is None
    sentence = unclear_header(CIMultiDict([("X-Mark", b"\xff".decode(errors="surrogateescape"))]))
    assert sentence == "the header X-Mark is not UTF-8; leave it out, or encode it"


def test_all_values_of_a_header_are_passed_on_and_none_of_the_connection() -> None:
    headers = CIMultiDict([("X-A", "1"), ("x-a", "2"), ("Expect", "100-continue"), ("Host", "h"), ("b", "3")])
    assert passed_on(headers, HOP_BY_HOP) == [("x-a", "1"), ("x-a", "2"), ("b", "3")]
