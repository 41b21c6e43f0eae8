"""Answers to random JSON schemas over a hand-off: the first token chosen by prefill, all others by decode."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.json_schemas import random_schema
from tests.support.served_graph import ServedGraph

jsonschema = pytest.importorskip("jsonschema")
pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(600)]

SCHEMAS, MOST_TOKENS = 200, 1500


def test_answers_to_random_schemas_validate_over_a_hand_off(
    start: Callable[..., ServedGraph], ascii_model: Path
) -> None:
    graph = start("graphs:disagg_wavepp", f"--Common.model={ascii_model}", "--PrefillWorker.pp=2")
    schemas = [random_schema(random.Random(seed)) for seed in range(SCHEMAS)]

    def ask(seed: int) -> dict[str, Any]:
        answer = graph.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": f"{seed} and so on"}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "drawn", "schema": schemas[seed]},
            },
            temperature=1.0,
            seed=seed,
            max_tokens=MOST_TOKENS,
        )
        assert answer.status_code == 200, f"{schemas[seed]}: {answer.text}"
        return answer.json()["choices"][0]

    with ThreadPoolExecutor(8) as pool:
        choices = list(pool.map(ask, range(SCHEMAS)))
    for schema, choice in zip(schemas, choices, strict=True):
        assert choice["finish_reason"] == "stop", f"{schema}: {choice}"
        value = json.loads(choice["message"]["content"])
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    graph.audit()
