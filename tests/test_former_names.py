"""Settings under the names they had before: in Python, as flags, in a file, as an override."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.testing
from wavepp_worker import cli, former_names
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs
from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import FORMER_NAMES
from wavepp_worker.runtime.client.file_run import FileRun
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.serve.cli import app as dynamo

VALUES = {"chunk": 37, "block": 8, "max_batch": 5, "min_chunk": 9, "chunk_cost": (0.1, 0.2, 0.3)}
PREFILL = ["prefill", "--prompts", "/dev/null", "--out", "out.jsonl", "--model", "/m"]


def flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def spelled(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.fixture(autouse=True)
def _nothing_told_yet(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setattr(former_names, "_told", set())
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(Path(__file__).parents[1])
    for name in list(os.environ):
        if name.startswith("DYN_"):
            monkeypatch.delenv(name)
    with caplog.at_level(logging.WARNING, "wavepp_worker"):
        yield


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == former_names.__name__]


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_python_takes_both_names(former: str, caplog: pytest.LogCaptureFixture) -> None:
    present, value = FORMER_NAMES[former], VALUES[former]
    kept = EngineConfig(model="/m", **{present: value})  # type: ignore[arg-type]
    assert getattr(kept, present) == value
    assert told(caplog) == []
    for _ in range(2):
        assert EngineConfig(model="/m", **{former: value}) == kept  # type: ignore[arg-type]
    assert told(caplog) == [f"{former} is now called {present}; the former name keeps working"]
    with pytest.raises(ConfigError, match=f"{former} and {present} are the former and"):
        EngineConfig(model="/m", **{former: value, present: value})  # type: ignore[arg-type]


def test_python_errors_name_the_key_that_was_used() -> None:
    for config in (EngineConfig, DecodeConfig):
        for key in ("block", "block_size"):
            with pytest.raises(ConfigError, match=f"^{key}: should be at least"):
                config(model="/m", **{key: 0})


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_worker_flags_take_both_names(former: str, caplog: pytest.LogCaptureFixture) -> None:
    present, value = FORMER_NAMES[former], VALUES[former]
    for key in (present, former):
        args = PrefillArgs.parse(["--model", "/m", flag(key), spelled(value)])
        assert getattr(args.engine, present) == value
    assert told(caplog) == [f"{flag(former)} is now called {flag(present)}; the former name keeps working"]
    with pytest.raises(ConfigError, match=f"{flag(former)} and {flag(present)} are the former and"):
        PrefillArgs.parse(["--model", "/m", flag(former), spelled(value), flag(present), spelled(value)])
    with pytest.raises(ConfigError, match=f"^{flag(former)}: .*, not 'x'"):
        PrefillArgs.parse(["--model", "/m", flag(former), "x" if former != "chunk_cost" else "x,x,x"])


def test_decode_and_agg_workers_take_both_names(caplog: pytest.LogCaptureFixture) -> None:
    AggArgs.parse(["--model", "/m", "--decode-max-batch", "3"])
    assert told(caplog) == [
        "--decode-max-batch is now called --decode-max-num-seqs; the former name keeps working"
    ]
    former_names._told.clear()
    assert DecodeArgs.parse(["--model", "/m", "--block", "8", "--max-batch", "3"]).decode == DecodeConfig(
        model=Path("/m"), block_size=8, max_num_seqs=3
    )
    for halves in ("--block 8 --decode-block-size 4", "--block-size 8 --decode-block 4"):
        args = AggArgs.parse(["--model", "/m", *halves.split()])
        assert (args.engine.block_size, args.decode.block_size) == (8, 4)
    both = AggArgs.parse(["--model", "/m", "--block", "8", "--max-batch", "3"])
    assert (both.decode.block_size, both.decode.max_num_seqs) == (8, 3)
    assert "--max-batch is now called --max-num-seqs; the former name keeps working" in told(caplog)
    with pytest.raises(ConfigError, match="--decode-block and --decode-block-size are"):
        AggArgs.parse(["--model", "/m", "--decode-block", "8", "--decode-block-size", "8"])


def test_help_shows_the_present_name_and_mentions_the_former(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        PrefillArgs.parse(["--help"])
    shown = capsys.readouterr().out
    for former, present in FORMER_NAMES.items():
        assert f"\n  {flag(present)} " in shown
        assert f"\n  {flag(former)} " not in shown
        assert re.search(rf"formerly {flag(former)}[);]", " ".join(shown.split()))


@pytest.mark.parametrize("former", ["chunk", "block", "max_batch"])
def test_wavepp_prefill_takes_both_names(
    former: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    configs: list[EngineConfig] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "wavepp_worker.runtime.client.prompt_file.run_file",
        lambda config, *_, **__: configs.append(config) or FileRun(),
    )
    for check in ("model.model_shape.read_model_shape", "runtime.client.start_checks.check_start"):
        monkeypatch.setattr(f"wavepp_worker.{check}", lambda *_: None)
    run, present = typer.testing.CliRunner().invoke, FORMER_NAMES[former]
    for key in (present, former):
        assert run(cli.app, [*PREFILL, flag(key), "7"]).exit_code == 0
    assert run(cli.app, PREFILL).exit_code == 0
    assert [getattr(config, present) for config in configs] == [
        7,
        7,
        EngineConfig(model="/m").model_dump()[present],
    ]
    assert told(caplog) == [f"{flag(former)} is now called {flag(present)}; the former name keeps working"]
    both = run(cli.app, [*PREFILL, flag(former), "7", flag(present), "7"])
    assert both.exit_code == 2
    assert f"{flag(former)} and {flag(present)} are the former and the present name" in both.output
    zero = run(cli.app, [*PREFILL, flag(former), "0"])
    assert f"{flag(former)}: should be at least 1, not 0" in zero.output
    default = getattr(EngineConfig(model=Path("/m")), present)
    shown = run(cli.app, ["prefill", "--help"], env={"TERMINAL_WIDTH": "300"}).output
    assert f"(default: {default}; formerly {flag(former)})" in shown
    assert f" {flag(former)} " not in shown


def dry_run(*words: str) -> tuple[int, str]:
    done = typer.testing.CliRunner().invoke(dynamo, ["serve", *words, "--dry-run"])
    return done.exit_code, done.output


def test_a_file_and_overrides_take_both_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plans = []
    for common, worker in (("block_size", "max_num_batched_tokens"), ("block", "chunk")):
        file = tmp_path / f"{worker}.yaml"
        file.write_text(f"Common:\n  {common}: 8\nPrefillWorker:\n  {worker}: 64\n")
        code, text = dry_run("graphs:disagg_wavepp", "-f", str(file))
        assert code == 0, text
        plans.append([line for line in text.splitlines() if "wavepp_worker.dynamo.prefill" in line])
        assert len(plans[-1]) == 2
        assert all("--block-size=8" in line and "--max-num-batched-tokens=64" in line for line in plans[-1])
        for key in (worker, "chunk", "max_num_batched_tokens"):
            # Whichever name either has, the command line wins over the file.
            code, text = dry_run("graphs:disagg_wavepp", "-f", str(file), f"--PrefillWorker.{key}=128")
            assert code == 0, text
            assert text.count("--max-num-batched-tokens=128") == 2
            assert "=64" not in text
    said = told(caplog)
    assert sorted(said) == [
        "Common.block is now called Common.block_size; the former name keeps working",
        "PrefillWorker.chunk is now called PrefillWorker.max_num_batched_tokens; the former name keeps working",
    ]


def test_a_service_wins_over_common_whichever_names_they_use() -> None:
    for common, own in (("block", "block_size"), ("block_size", "block")):
        code, text = dry_run("graphs:disagg_wavepp", f"--Common.{common}=8", f"--DecodeWorker.{own}=4")
        assert code == 0, text
        decode = next(line for line in text.splitlines() if "wavepp_worker.dynamo.decode" in line)
        assert "--block-size=4" in decode
        assert text.count("--block-size=8") == 2


def test_both_names_in_one_source_are_an_error() -> None:
    both = ("--PrefillWorker.chunk=8", "--PrefillWorker.max_num_batched_tokens=8")
    code, text = dry_run("graphs:disagg_wavepp", *both)
    assert code == 2
    assert f"{both[0][:-2]} and {both[1][:-2]} are the former and" in text


def test_common_configs_and_prefixed_keys_take_former_names(tmp_path: Path) -> None:
    file = tmp_path / "agg.yaml"
    file.write_text(
        "Common: {block: 8, max_batch: 3}\nWorker: {common-configs: [block], decode_max_batch: 2, decode_block: 4}\n"
    )
    code, text = dry_run("graphs:agg_wavepp", "-f", str(file))
    assert code == 0, text
    worker = next(line for line in text.splitlines() if "wavepp_worker.dynamo.agg" in line)
    assert "--block-size=8" in worker
    assert "--decode-max-num-seqs=2" in worker
    assert "--decode-block-size=4" in worker
    assert "--max-num-seqs=3" not in worker


@pytest.mark.parametrize("config", [EngineConfig, DecodeConfig])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("wave_timeout", 0.5),
        ("wave_timeout", float("inf")),
        ("request_timeout", 1e300),
        ("request_timeout", 0.09),
        ("handoff_timeout", 2e6),
        ("handoff_timeout", 1e-300),
    ],
)
def test_a_limit_of_time_is_one_that_ranks_can_keep(
    config: type[EngineConfig] | type[DecodeConfig], key: str, value: float
) -> None:
    """Longer ones overflowed where a socket or thread waits; ranks say twice a second that they live, and in less than
    a tenth of one no request was answered."""
    with pytest.raises(ConfigError, match=f"^{key}: "):
        config.model_validate({"model": Path("/m"), key: value})
    config.model_validate({"model": Path("/m"), key: former_names.LONGEST_SECONDS})
