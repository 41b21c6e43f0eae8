"""What adapters may be called."""

from __future__ import annotations

import pytest
from wavepp_worker.dynamo.adapter_names import check_adapter_names
from wavepp_worker.errors import ConfigError


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("Poet", "poet"), "Poet and poet are one name to Dynamo"),
        (("a/b", "a.b"), r"a/b and a\.b are one name to Dynamo"),
        (("ü",), "an adapter cannot be called 'ü'"),
        (("a\nb",), r"an adapter cannot be called 'a\\nb'"),
        (("n" * 101,), "at most 100 characters"),
        (("tiny",), "tiny is what the base model is served as"),
    ],
)
def test_names_under_which_an_adapter_could_not_be_asked_for_are_refused(
    names: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ConfigError, match=f"^lora_modules: .*{why}"):
        check_adapter_names(names, "tiny")


def test_names_that_dynamo_tells_apart_are_taken() -> None:
    check_adapter_names(("poet", "poet-2", "a/b", "ab", "Coder"), "tiny")
