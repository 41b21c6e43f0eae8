from __future__ import annotations

import pytest
from wavepp_worker.dynamo.worker_settings import WorkerSettings
from wavepp_worker.errors import ConfigError


def test_a_role_may_have_dynamos_name_for_it() -> None:
    for mode in ("pd", "prefill_and_decode"):
        assert WorkerSettings(disaggregation_mode=mode) == WorkerSettings(disaggregation_mode="agg")
    assert WorkerSettings().disaggregation_mode is None
    for mode, said in (
        ("encode", "should be agg, prefill or decode; this worker takes text only"),
        ("x", "should be 'agg'"),
    ):
        with pytest.raises(ConfigError, match=f"^disaggregation_mode: {said}"):
            WorkerSettings(disaggregation_mode=mode)


@pytest.mark.parametrize("names", ["a b", "a,b", " ", ""])
def test_a_worker_serves_under_one_name(names: str) -> None:
    assert WorkerSettings(served_model_name="org/a-b.c").served_model_name == "org/a-b.c"
    with pytest.raises(ConfigError, match=r"^served_model_name: should be one name"):
        WorkerSettings(served_model_name=names)


def test_a_model_name_that_could_not_be_a_files_is_refused() -> None:
    assert WorkerSettings(served_model_name="m" * 255).served_model_name == "m" * 255
    assert WorkerSettings(served_model_name="\u6f22" * 40)
    with pytest.raises(ConfigError, match="served_model_name: should be at most 255 characters long"):
        WorkerSettings(served_model_name="m" * 300)
