"""What a worker's configuration is in the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_shape import read_model_shape


def dumped(
    kind: type[PrefillArgs | DecodeArgs | AggArgs], model: Path, file: Path, *words: str
) -> dict[str, object]:
    kind.parse_or_exit(["--model", str(model), "--kv-tokens", "8192", "--dump-config-to", str(file), *words])
    return json.loads(file.read_text())["config"]


def test_the_configuration_that_counts_is_written_down(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_WAVEPP_PP", "2")
    queue = ("--intake", "nats", "--nats-server", "nats://me:secret@h:4222")
    words = ("--max-num-tokens", "64", "--namespace", "n", *queue)
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


@pytest.mark.parametrize(
    ("name", "value"), [("DYN_TCP_RESPONSE_STREAM_HOST", "eth99"), ("DYN_SYSTEM_PORT", "40001")]
)
def test_where_a_worker_could_not_listen_it_does_not_start(
    name: str,
    value: str,
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        DecodeArgs.parse_or_exit(["--model", str(tiny_llama), "--kv-tokens", "8192"])
    assert capsys.readouterr().err.startswith(f"error: {name}: {value!r} is ")


def test_a_worker_takes_a_fraction_of_memory_unless_it_is_told_tokens(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wavepp_worker.dynamo.args.free_memory", lambda device: 8 << 30)
    words = ["--model", str(tiny_llama), "--dtype", "float32"]
    shape = read_model_shape(tiny_llama)

    def pool(*more: str) -> int:
        tokens = PrefillArgs.parse([*words, *more]).settled(shape).engine.kv_tokens
        assert isinstance(tokens, int)
        return tokens

    assert pool("--kv-tokens", "9000") == 9000
    assert pool() == pytest.approx(pool("--free-gpu-memory-fraction", "0.1"), abs=1)
    assert pool("--gpu-memory-utilization", "0.2") == pytest.approx(2 * pool(), rel=1e-3)
    decode = DecodeArgs.parse(words).settled(shape).decode.kv_tokens
    agg = AggArgs.parse(words).settled(shape)
    assert decode is not None
    assert agg.engine.kv_tokens == agg.decode.kv_tokens
    assert agg.decode.kv_tokens is not None
    assert agg.decode.kv_tokens < decode / 2
    half = AggArgs.parse([*words, "--kv-memory-fraction", "0.2", "--decode-kv-tokens", "9000"]).settled(shape)
    assert half.decode.kv_tokens == 9000
    both = ["--kv-tokens", "9000", "--kv-memory-fraction", "0.1"]
    with pytest.raises(ConfigError) as caught:
        PrefillArgs.parse([*words, *both])
    assert str(caught.value) == (
        "--kv-tokens and --kv-memory-fraction both say how large the KV pool is; give one of them"
    )
    monkeypatch.setenv("DYN_WAVEPP_GPU_MEMORY_UTILIZATION", "1e-6")
    with pytest.raises(
        ConfigError, match=r"^DYN_WAVEPP_GPU_MEMORY_UTILIZATION: 1e-06 of the memory that is free"
    ):
        PrefillArgs.parse(words).check(shape)
    monkeypatch.setenv("DYN_WAVEPP_GPU_MEMORY_UTILIZATION", "")
    with pytest.raises(ConfigError, match=r"^--kv-tokens: asks for .* GiB of KV, .*; lower it"):
        PrefillArgs.parse([*words, "--kv-tokens", "1000000000"]).check(shape)
    with pytest.raises(ConfigError, match=r"^--kv-memory-fraction: should be at most 1, not 1\.5$"):
        PrefillArgs.parse([*words, "--kv-memory-fraction", "1.5"])
