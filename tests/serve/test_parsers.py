from __future__ import annotations

import pytest
from wavepp_worker.dynamo.args import PrefillArgs
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import PREFILL_WORKER, Service
from wavepp_worker.serve.parsers import parser_of


def test_the_class_that_a_graph_names() -> None:
    assert parser_of(PREFILL_WORKER) is PrefillArgs
    assert parser_of(Service("A", "a")) is None
    with pytest.raises(ConfigError, match=r"^A: no_such cannot be imported: "):
        parser_of(Service("A", "a", arguments="no_such:Args"))
