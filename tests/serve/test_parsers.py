from __future__ import annotations

import os
import subprocess
import sys

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


def test_dynamo_says_nothing_as_it_is_imported_where_lines_are_json() -> None:
    """In a process of its own, as it is imported once."""
    code = (
        "from wavepp_worker.serve import FRONTEND\n"
        "from wavepp_worker.serve.parsers import parser_of\n"
        "parser_of(FRONTEND).parse([])"
    )
    environment = {**os.environ, "DYN_LOGGING_JSONL": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout + done.stderr == ""
