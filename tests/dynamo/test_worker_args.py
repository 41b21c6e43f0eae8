"""What a worker's configuration is in the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs


def dumped(
    kind: type[PrefillArgs | DecodeArgs | AggArgs], model: Path, file: Path, *words: str
) -> dict[str, object]:
    kind.parse_or_exit(["--model", str(model), "--kv-tokens", "8192", "--dump-config-to", str(file), *words])
    return json.loads(file.read_text())["config"]


def test_the_configuration_that_counts_is_written_down(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_WAVEPP_PP", "2")
    words = ("--max-num-tokens", "64", "--namespace", "n", "--nats-server", "nats://me:secret@h:4222")
    config = dumped(PrefillArgs, tiny_llama, tmp_path / "new" / "c.json", *words)
    assert set(config) == {"engine", "intake", "runtime"}
    engine, runtime = config["engine"], config["runtime"]
    assert isinstance(engine, dict)
    assert isinstance(runtime, dict)
    assert (engine["pp"], engine["max_num_batched_tokens"], engine["planner"]) == (2, 64, "mpu")
    assert (runtime["namespace"], runtime["component"], runtime["served_model_name"]) == (
        "n",
        "prefill",
        tiny_llama.name,
    )
    assert runtime["request_plane"] == "tcp"
    assert "secret" not in (tmp_path / "new" / "c.json").read_text()
    assert set(dumped(DecodeArgs, tiny_llama, tmp_path / "d.json")) == {"decode", "runtime"}
    assert set(dumped(AggArgs, tiny_llama, tmp_path / "a.json")) == {
        "engine",
        "decode",
        "remote",
        "decodes_own",
        "runtime",
    } - {"decodes_own"}


def test_a_file_that_cannot_be_written_does_not_end_the_start(tiny_llama: Path) -> None:
    args = PrefillArgs.parse_or_exit(
        ["--model", str(tiny_llama), "--kv-tokens", "8192", "--dump-config-to", "/proc/nowhere/c.json"]
    )
    assert args.engine.kv_tokens == 8192
