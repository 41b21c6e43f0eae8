from __future__ import annotations

import pytest
from wavepp_worker.dynamo.request_ids import ended_or_unknown, possible_ids
from wavepp_worker.runtime.protocol.requests import Timings

ID = "d6415c17-e214-4dfe-a63c-97c89e84501e"


@pytest.mark.parametrize(
    "given", [ID, f" {ID}\n", f"cmpl-{ID}", f"chatcmpl-{ID}", f"resp_{ID}", ID.upper(), ID.replace("-", "")]
)
def test_ids_of_answers_and_headers_lead_to_the_request(given: str) -> None:
    assert possible_ids(given)[-1] == ID
    assert possible_ids(given)[0] == given.strip(), "a job may be called so"


def test_other_names_stay_what_they_are() -> None:
    assert possible_ids("job 7") == ("job 7",)
    assert possible_ids("cmpl-") == ("cmpl-",)


def test_what_is_over_is_told_from_what_never_was() -> None:
    timings = Timings(queued=0.5, admission=0.001, execution=1.0, total=1.501)
    over = ended_or_unknown((f"cmpl-{ID}", ID), {ID: timings}.get)
    assert (over.request_id, over.state) == (ID, "over")
    assert over.sentence.startswith("is prefilled, which took 1.501 s (queued 0.500 s, ")
    unknown = ended_or_unknown((f"cmpl-{ID}", ID), {}.get)
    assert (unknown.request_id, unknown.state) == (ID, "unknown")
