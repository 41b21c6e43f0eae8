"""``wavepp prefill``: prompt lines in, result lines out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner
from wavepp_worker.cli import app

from tests.support.reference import Reference


def test_a_file_of_prompts_becomes_a_file_of_results(
    tiny_llama: Path, reference: Reference, tmp_path: Path
) -> None:
    shared = list(range(40))
    lines = [
        {"id": "cold", "token_ids": shared},
        {"id": 2, "text": "hello"},
        {"id": "empty", "token_ids": []},
        {"id": "alien", "token_ids": [1, 5000]},
        {"id": "neither"},
    ]
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("\n".join(json.dumps(line) for line in lines) + "\nnot json\n")
    arguments = [
        "prefill",
        "--model",
        str(tiny_llama),
        "--pp",
        "3",
        "--prompts",
        str(prompts),
        "--out",
        str(out),
    ]
    arguments += ["--dtype", "float32", "--max-num-batched-tokens", "16", "--block-size", "8"]
    arguments += ["--top-logprobs", "20"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [result["id"] for result in results] == ["cold", 2, "empty", "alien", "neither", None]
    cold = results[0]
    assert set(cold) == {"id", "first_token", "top_logprobs", "reused_tokens", "prompt_tokens", "seconds"}
    expected = reference.next_logprobs(shared)
    assert cold["first_token"] == int(expected.argmax())
    assert len(cold["top_logprobs"]) == 20
    values = [logprob for _, logprob in cold["top_logprobs"]]
    assert values == sorted(values, reverse=True)
    for token, logprob in cold["top_logprobs"]:
        assert logprob == pytest.approx(float(expected[token]), abs=1e-3)
    assert cold["prompt_tokens"] == 40
    assert results[1]["prompt_tokens"] > 0
    assert "empty" in results[2]["error"]
    assert "5000 is outside the vocabulary" in results[3]["error"]
    assert "token_ids" in results[4]["error"]
    assert "not a JSON object" in results[5]["error"]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--pp", "99"], "pp"),
        (["--partition", "a,b"], "partition"),
        (["--dtype", "float8"], "--dtype"),
        (["--kv-tokens", "64"], "kv_tokens"),
        (["--model", "/nowhere"], "model"),
        (["--prompts", "/nowhere.jsonl"], "prompts"),
    ],
)
def test_a_wrong_flag_exits_with_2_and_names_it(
    tiny_llama: Path, tmp_path: Path, flags: list[str], complaint: str
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": 1, "token_ids": [1]}\n')
    arguments = [
        "prefill",
        "--model",
        str(tiny_llama),
        "--prompts",
        str(prompts),
        "--out",
        str(tmp_path / "o"),
    ]
    outcome = CliRunner().invoke(app, [*arguments, *flags])
    assert outcome.exit_code == 2, outcome.output
    assert f"error: {complaint}" in outcome.output
