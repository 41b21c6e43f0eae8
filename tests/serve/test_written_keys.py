"""Messages name a key as the user wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.testing
from wavepp_worker.serve.cli import app

pytestmark = pytest.mark.usefixtures("in_the_repository")


def refused(*words: str) -> str:
    result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:disagg_wavepp", "--dry-run", *words])
    assert result.exit_code == 2, result.output
    assert result.output.count("\n") == 1
    return result.output.removeprefix("error: ")


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("--PrefillWorker.pp=0", "--PrefillWorker.pp: should be at least 1"),
        ("--PrefillWorker.kv-tokens=x", "--PrefillWorker.kv-tokens: "),
        ("--PrefillWorker.chunk=0", "--PrefillWorker.chunk: should be at least"),
        ("--Common.dtype=int8", "--Common.dtype: should be 'auto', 'float32' or 'bfloat16', not 'int8'"),
        ("--Common.block=0", "--Common.block: should be at least"),
        (
            "--PrefillWorker.ppp=3",
            "--PrefillWorker.ppp: unknown (did you mean PrefillWorker.pp?); python -m ",
        ),
        (
            "--PrefilWorker.pp=3",
            "--PrefilWorker.pp: graph disagg_wavepp has no service PrefilWorker (did you mean PrefillWorker?)",
        ),
        (
            "--Common.dtpye=auto",
            "--Common.dtpye: no service of graph disagg_wavepp takes it (did you mean dtype?)",
        ),
        (
            "--PrefillWorker.ServiceArgs.worker=3",
            "--PrefillWorker.ServiceArgs.worker: unknown (did you mean workers?)",
        ),
        (
            "--PrefillWorker.ServiceArgs.workers=0",
            "--PrefillWorker.ServiceArgs.workers: should be at least 1, not 0",
        ),
        ("--PrefillWorker.pp", "--PrefillWorker.pp: needs a value, a whole number"),
        ("--PrefillWorker.request_plane=post", "--PrefillWorker.request_plane: invalid choice: 'post'"),
    ],
)
def test_on_the_command_line(word: str, sentence: str) -> None:
    assert refused(word).startswith(sentence)


def test_one_bound_has_one_wording_whichever_way_the_value_came(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("PrefillWorker:\n  kv_tokens: -5\n")
    for words in (["--PrefillWorker.kv_tokens", "-5"], ["--PrefillWorker.kv_tokens=-5"], ["-f", str(file)]):
        key = words[0].partition("=")[0] if len(words[0]) > 2 else f"PrefillWorker.kv_tokens ({file}, line 2)"
        assert refused(*words) == f"{key}: should be at least 1, not -5\n"
    assert refused("--PrefillWorker.kv_tokens=-5,3").endswith(": should be at least 1, not -5\n")
    assert refused("--PrefillWorker.host_kv_tokens", "-1").endswith(": should be at least 0, not -1\n")
    assert refused("--PrefillWorker.wave_timeout=0.5").endswith(": should be at least 1, not 0.5\n")
    assert refused("--PrefillWorker.wave_timeout=2e6").endswith(": should be at most 1000000, not 2e6\n")


def test_a_command_that_a_message_advises_can_be_run_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wavepp_worker.handoff.transport_choice.nixl_installed", lambda: False)
    said = refused("--PrefillWorker.handoff=nixl")
    assert "pip install --no-deps nixl nixl-cu12" in said
    assert said.startswith("--PrefillWorker.handoff")


def test_a_key_that_is_given_twice(tmp_path: Path) -> None:
    assert refused("--Common.kv_tokens=64", "--Common.kv-tokens=65") == (
        "--Common.kv-tokens: is given already, as --Common.kv_tokens; keep one of the two\n"
    )
    assert refused("--model", "/a", "--Common.model=/b").startswith(
        "--model: is short for --Common.model, which "
    )
    file = tmp_path / "c.yaml"
    file.write_text("PrefillWorker:\n  kv_tokens: 64\n  kv-tokens: 65\n")
    assert refused("-f", str(file)).startswith(f"-f {file}, line 3: kv-tokens is in line 2 already; keep one")


def test_in_a_file_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("Common:\n  block: 0\nPrefillWorker:\n  kv-tokens: 32768\n  chunk: 0\n")
    at = f"({file}, line 5)"
    assert refused("-f", str(file), "--Common.block=8").startswith(
        f"PrefillWorker.chunk {at}: should be at least"
    )
    # What counts is on the command line.
    assert refused("-f", str(file), "--PrefillWorker.pp=2", "--PrefillWorker.chunk=0").startswith(
        f"Common.block ({file}, line 2): should be at least"
    )
    words = ("-f", str(file), "--Common.block=8", "--PrefillWorker.chunk=-1")
    assert refused(*words).startswith("--PrefillWorker.chunk: should be at least")
    file.write_text("PrefillWorker:\n  pp:\n")
    assert refused("-f", str(file)) == (
        f"-f {file}, line 2: PrefillWorker.pp has no value; give it one, or leave the key out\n"
    )
    file.write_text("Common: {dtype: auto}\nCommon: {dtype: auto}\n")
    assert refused("-f", str(file)).startswith(f"-f {file}, line 2: Common is in line 1 already")


def test_a_key_that_is_advised_is_not_taken_for_one_that_was_written() -> None:
    said = refused("--PrefillWorker.served_model_name=a", "--DecodeWorker.served_model_name=b")
    assert said.startswith("--PrefillWorker.served_model_name: ")
    assert said.endswith("; set Common.served_model_name\n")


def test_as_an_option_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused("--model", "/nope").startswith("--model: /nope ")
    assert refused("--DecodeWorker.model=/nope").startswith("--DecodeWorker.model: /nope ")
    monkeypatch.setenv("DYN_REQUEST_PLANE", "post")
    assert "request_plane (from DYN_REQUEST_PLANE): invalid choice: 'post'" in refused()
