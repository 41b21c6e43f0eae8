"""``wavepp prefill`` refuses what cannot work in one sentence, before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing
from wavepp_worker.cli import app


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--model /nope", "--model: /nope does not exist; give the path of a Hugging Face model directory"),
        (
            "--model org/some-7B",
            "--model: there is no directory org/some-7B here, and models are not downloaded",
        ),
        ("--pp 7", "--pp: 7 stages cannot share 6 layers"),
        ("--pp 2 --partition 3,4", "--partition: 3,4 adds up to 7 layers"),
        ("--kv-tokens 512", "--kv-tokens gives rank 0 a pool of 512 tokens"),
        ("--kv-tokens -5", "--kv-tokens: should be at least 1, not -5"),
        ("--max-model-len 100000", "--max-model-len is 100000, but the model's context length is"),
        ("--device gpu", "--device: 'gpu' is none; it is cpu, cuda"),
        ("--timeline /no/where.json", "--timeline is /no/where.json"),
        ("--prompts /nope.jsonl", "--prompts is /nope.jsonl, which cannot be read"),
        ("--out /nope/out.jsonl", "--out is /nope/out.jsonl, which cannot be written"),
    ],
)
def test_one_sentence_that_begins_with_the_flag(
    flags: str, sentence: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text('{"id": 1, "text": "hello"}\n')
    words = ["prefill", "--prompts", "prompts.jsonl", "--out", "out.jsonl", "--model", str(tiny_llama)]
    result = typer.testing.CliRunner().invoke(app, [*words, *flags.split()])
    assert result.exit_code == 2, result.output
    assert result.output.startswith(f"error: {sentence}")
    assert result.output.count("\n") == 1
    assert not Path("out.jsonl").exists()


def test_nothing_that_needs_no_tensor_library_waits_for_one(tiny_llama: Path, tmp_path: Path) -> None:
    """Loading one takes longer than the rest of a start, and a wrong path is known without it."""
    code = """
import sys
from wavepp_worker.cli import app
try:
    app()
finally:
    print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""
    flags = ["--model", str(tiny_llama), "--prompts", "none.jsonl", "--out", "out.jsonl"]
    command = [sys.executable, "-c", code, "prefill", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "[]\n"), done.stderr
