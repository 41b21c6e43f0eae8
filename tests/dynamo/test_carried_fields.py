from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.dynamo.carried_fields import carried_options, refused_annotation, with_carried
from wavepp_worker.dynamo.openai_checks import CHECKED_PATHS, refusal
from wavepp_worker.errors import InvalidRequest


@pytest.mark.parametrize(
    "nvext", [None, {}, {"annotations": None}, {"annotations": ["a"], "greed_sampling": True}]
)
def test_what_is_carried_arrives_and_nothing_else_changes(nvext: Any) -> None:
    body = {"prompt": "x", "logit_bias": {"5": -100, "7": 1.5}, "nvext": nvext}
    sent = with_carried(body)
    assert sent is not None
    assert sent.pop("prompt") == "x"
    (kept,) = sent.values()
    *own, carried = kept.pop("annotations")
    assert own == ((nvext or {}).get("annotations") or [])
    assert kept == {key: value for key, value in (nvext or {}).items() if key != "annotations"}
    assert carried_options({"annotations": [*own, carried]}) == {"logit_bias": body["logit_bias"]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"logit_bias": {}},
        {"logit_bias": None},
        {"logit_bias": {"5": 1}, "nvext": 5},
        {"logit_bias": {"5": 1}, "nvext": {"annotations": "a"}},
    ],
)
def test_a_body_without_it_or_that_is_refused_anyway_stays_as_it_is(body: dict[str, Any]) -> None:
    assert with_carried(body) is None


@pytest.mark.parametrize("annotations", [None, "wavepp.logit_bias:{}", [], [5, None, "other:1"]])
def test_a_request_may_carry_nothing(annotations: Any) -> None:
    assert carried_options({"annotations": annotations}) == {}


def test_what_cannot_be_read_is_refused() -> None:
    for text in ("{", "", "[" * 100_000):
        with pytest.raises(InvalidRequest, match="not followed by JSON"):
            carried_options({"annotations": [f"wavepp.logit_bias:{text}"]})


@pytest.mark.parametrize("path", CHECKED_PATHS)
@pytest.mark.parametrize("value", ['{"5": 1}', "[", "null"])
def test_a_client_does_not_write_what_is_carried(path: str, value: str) -> None:
    """It would pass unchecked, and count in place of the field."""
    body = {"nvext": {"annotations": ["a", f"wavepp.logit_bias:{value}"]}, "logit_bias": {"5": -1}}
    if path == "/v1/responses":
        del body["logit_bias"]
    sentence = refusal(path, body, 300)
    assert sentence is not None
    assert sentence.startswith("nvext.annotations that begin with wavepp. are not for clients")


@pytest.mark.parametrize(
    "nvext", [None, 5, {}, {"annotations": "wavepp.x"}, {"annotations": ["a", 5, "x wavepp."]}]
)
def test_other_annotations_are_the_clients(nvext: Any) -> None:
    assert refused_annotation({"nvext": nvext}) is None
