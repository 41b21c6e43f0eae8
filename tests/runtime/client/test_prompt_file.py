"""``wavepp prefill``: prompt lines in, result lines out."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
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
    assert outcome.exit_code == 1, outcome.output
    assert "4 of 6 prompts failed" in outcome.stderr
    summary = json.loads(outcome.stdout)
    assert summary["failed"] == 4
    assert summary["start_seconds"] > 0, "which the seconds of the prompts leave out"
    assert f"loading {tiny_llama}, starting 3 ranks\n" in outcome.stderr
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


def processes_of(session: int) -> list[Path]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # Any may end meanwhile.
        with contextlib.suppress(OSError):
            if os.getsid(int(process.name)) == session:
                found.append(process)
    return found


def test_between_pipes_results_come_as_they_are_ready_and_an_interrupt_leaves_nothing_behind(
    tiny_llama: Path, tmp_path: Path, scratch: Path
) -> None:
    """Prompts of token ids need no tokenizer, and what they have in common is computed once."""
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model, ignore=shutil.ignore_patterns("tokenizer*"))
    code = "import sys; from wavepp_worker.cli import app; sys.argv[0] = 'wavepp'; app()"
    command = [sys.executable, "-c", code, "prefill", "--model", str(model), "--prompts", "-", "--out", "-"]
    running = subprocess.Popen(
        [*command, "--pp", "2", "--dtype", "float32", "--block-size", "8", "--top-logprobs", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch), "COLUMNS": "120"},
        start_new_session=True,
    )
    assert running.stdin is not None
    assert running.stdout is not None

    def ask(first: int, *prompts: list[int]) -> list[dict[str, object]]:
        lines = [json.dumps({"id": first + n, "token_ids": ids}) for n, ids in enumerate(prompts)]
        running.stdin.write("\n".join(lines) + "\n")
        running.stdin.flush()
        answers = [json.loads(running.stdout.readline()) for _ in prompts]
        assert [answer["id"] for answer in answers] == list(range(first, first + len(prompts)))
        return answers

    try:
        (first,) = ask(0, [1, 2, 3])
        assert (first["prompt_tokens"], first["top_logprobs"]) == (3, [])
        assert processes_of(running.pid), "this is how they are found"
        shared = [7] * 64
        burst = ask(1, *([*shared, number] * 2 for number in range(20)))
        assert [answer["reused_tokens"] for answer in burst] == [0] + [64] * 19
        os.killpg(running.pid, signal.SIGINT)
        running.wait(120)
        out, errors = running.communicate()
    finally:
        running.kill()
    assert (running.returncode, out) == (130, ""), errors
    assert "interrupted: the results of 21 of the 21 prompts read so far are written" in errors
    assert "Traceback" not in errors
    assert processes_of(running.pid) == []
    assert not list(scratch.glob("wavepp-*"))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--pp", "99"], "--pp"),
        (["--partition", "a,b"], "--partition"),
        (["--dtype", "float8"], "--dtype"),
        (["--kv-tokens", "64"], "--kv-tokens"),
        (["--model", "/nowhere"], "--model"),
        (["--prompts", "/nowhere.jsonl"], "--prompts is /nowhere.jsonl, which cannot be read"),
        (["--out", "/nowhere/o"], "--out is /nowhere/o, which cannot be written"),
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
