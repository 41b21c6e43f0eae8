"""Processes that compute nothing load no tensor library: that takes seconds, and hundreds of MB, of each."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "wavepp_worker.dynamo.prefill",
        "wavepp_worker.dynamo.frontend",
        "wavepp_worker.intake.prefill_queue",
        "wavepp_worker.runtime.client.prompt_file",
        "wavepp_worker.serve.launch",
    ],
)
def test_it_loads_no_tensor_library(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'transformers'}} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []
