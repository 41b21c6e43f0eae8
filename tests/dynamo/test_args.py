from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_shape import read_model_shape
from wavepp_worker.serve.ports import HeldPorts
from wavepp_worker.versions import versions


def test_every_kind_of_flag_reaches_the_configuration() -> None:
    flags = (
        "--model /m/smol --pp 4 --partition 10,8,6,6 --kv-tokens 100,200,300,400 --dtype float32 "
        "--max-num-batched-tokens 37 --namespace n --component c --discovery-backend file --event-plane zmq "
        "--bootstrap-port 7000 --served-model-name name --handoff socket"
    )
    args = PrefillArgs.parse(flags.split())
    assert args.engine.partition == (10, 8, 6, 6)
    assert args.engine.kv_tokens == (100, 200, 300, 400)
    assert (args.engine.dtype, args.engine.max_num_batched_tokens, args.engine.handoff) == (
        "float32",
        37,
        "socket",
    )
    runtime = args.runtime
    assert (runtime.namespace, runtime.component, runtime.endpoint) == ("n", "c", "generate")
    assert (runtime.served_model_name, runtime.bootstrap_port) == ("name", 7000)
    assert runtime.options.discovery_backend == "file"


def test_defaults_by_role() -> None:
    prefill = PrefillArgs.parse(["--model", "/m/smol", "--kv-tokens", "512"])
    assert (prefill.runtime.component, prefill.runtime.served_model_name) == ("prefill", "smol")
    assert (prefill.engine.handoff, prefill.engine.kv_tokens) == ("auto", 512)
    assert DecodeArgs.parse(["--model", "/m/smol"]).runtime.component == "backend"
    assert AggArgs.parse(["--model", "/m/smol"]).runtime.component == "backend"


def test_agg_shares_flags_and_lets_decode_differ() -> None:
    flags = "--model /m --dtype float32 --kv-tokens 640 --block-size 32 --decode-kv-tokens 320 --pp 2"
    args = AggArgs.parse(flags.split())
    assert (args.engine.kv_tokens, args.decode.kv_tokens) == (640, 320)
    assert args.decode.block_size == args.engine.block_size == 32
    assert args.decode.dtype == args.engine.dtype == "float32"
    assert AggArgs.parse(["--model", "/m", "--pp", "2", "--kv-tokens", "64,96"]).engine.kv_tokens == (64, 96)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--model /m --frobnicate 3", "--frobnicate"),
        ("--model /m --pp zero", "--pp"),
        ("--model /m --pp 0", "--pp"),
        ("--model /m --partition 1,x", "--partition"),
        ("--model /m --kv-tokens 1,,y", "--kv-tokens"),
        ("--model /m --wave-cost 1,2", "^--wave-cost: has too few values, 2$"),
        ("--model /m --dtype float16", "--dtype"),
        ("--model /m --handoff none", "--handoff"),
        ("--pp 2", "--model"),
        ("--model /m --discovery-backend paper", "--discovery-backend"),
        ("--model /m --chu 4", "--chu"),
    ],
)
def test_a_bad_flag_is_named(flags: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        PrefillArgs.parse(flags.split())


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--decode-kv-tokens 0", "--decode-kv-tokens: "),
        ("--decode-block 0", "--decode-block: "),
        ("--kv-tokens 64 --decode-kv-tokens x", "--decode-kv-tokens: "),
        ("--max-num-seqs 0", "--max-num-seqs: "),
    ],
)
def test_a_bad_flag_of_either_half_is_named_as_it_was_given(flags: str, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}"):
        AggArgs.parse(["--model", "/m", *flags.split()])


def test_where_prefills_come_from_and_where_they_go() -> None:
    prefill = PrefillArgs.parse(
        ["--model", "/m", "--intake", "nats-alone", "--intake-ahead", "3", "--nats-server", "tls://a:1"]
    )
    assert (prefill.intake.intake, prefill.intake.takes_jobs, prefill.intake.intake_ahead) == (
        "nats-alone",
        True,
        3,
    )
    assert PrefillArgs.parse(["--model", "/m"]).intake.takes_jobs is False
    agg = AggArgs.parse(["--model", "/m", "--remote-prefill", "nats", "--max-local-prefill-length", "7"])
    assert (agg.remote.remote_prefill, agg.remote.max_local_prefill_length) == ("nats", 7)
    assert agg.remote.max_prefill_queue_size == 2
    for words in ("--intake kafka", "--intake-silence 0", "--intake-attempts 0"):
        with pytest.raises(ConfigError, match=rf"^{words.split()[0]}: "):
            PrefillArgs.parse(["--model", "/m", *words.split()])
    with pytest.raises(ConfigError, match=r"^--max-prefill-queue-size: "):
        AggArgs.parse(["--model", "/m", "--max-prefill-queue-size", "-1"])


def test_a_bad_command_line_exits_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        PrefillArgs.parse_or_exit(["--model", "/m", "--nonsense"])
    assert left.value.code == 2
    assert "--nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--ppp=3", "--pp"),
        ("--kv_token", "--kv-tokens"),
        ("--modle", "--model"),
        ("--namespcae", "--namespace"),
    ],
)
def test_a_misspelt_flag_is_told_what_was_probably_meant(flag: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PrefillArgs.parse(["--model", "/m", flag])
    assert str(caught.value) == f"{flag.partition('=')[0]}: unknown (did you mean {meant}?) (see --help)"
    with pytest.raises(ConfigError, match=r"^--zzzz: unknown \(see --help\)$"):
        PrefillArgs.parse(["--model", "/m", "--zzzz"])


def test_the_environment_has_defaults_of_every_setting_and_a_flag_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "MODEL_PATH": "/m",
        "PP": "3",
        "PARTITION": "1,2,3",
        "INTAKE_AHEAD": "4",
        "SERVED_MODEL_NAME": "s",
        "DECODE_BLOCK_SIZE": "8",
        "TIMELINE": "",
    }.items():
        monkeypatch.setenv(f"DYN_WAVEPP_{name}", value)
    args = PrefillArgs.parse([])
    assert (str(args.engine.model), args.engine.pp, args.engine.partition) == ("/m", 3, (1, 2, 3))
    assert (args.intake.intake_ahead, args.runtime.served_model_name, args.engine.timeline) == (4, "s", None)
    assert PrefillArgs.parse(["--pipeline-parallel-size", "2"]).engine.pp == 2
    assert str(PrefillArgs.parse(["--model", "/n"]).engine.model) == "/n"
    agg = AggArgs.parse(["--block-size", "32"])
    assert (agg.engine.block_size, agg.decode.block_size) == (32, 8)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PP", "0", "DYN_WAVEPP_PP: should be at least 1, not 0"),
        ("MAX_NUM_TOKENS", "x", "DYN_WAVEPP_MAX_NUM_TOKENS: should be a whole number, not 'x'"),
        ("BOOTSTRAP_PORT", "-1", "DYN_WAVEPP_BOOTSTRAP_PORT: should be at least 0, not -1"),
        ("HANDOFF", "none", "DYN_WAVEPP_HANDOFF: a worker behind Dynamo has to hand its KV to decode"),
        (
            "DISAGGREGATION_MODE",
            "decode",
            "DYN_WAVEPP_DISAGGREGATION_MODE: decode is not what this module runs",
        ),
        (
            "KVTOKENS",
            "1",
            "DYN_WAVEPP_KVTOKENS: unknown (did you mean DYN_WAVEPP_KV_TOKENS?); no worker has such a",
        ),
    ],
)
def test_a_bad_value_names_the_variable(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"DYN_WAVEPP_{name}", value)
    with pytest.raises(ConfigError) as caught:
        PrefillArgs.parse(["--model", "/m"])
    assert str(caught.value).startswith(said)


def test_what_an_engine_would_refuse_names_the_variable_or_the_flag_that_was_used(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = read_model_shape(tiny_llama)
    monkeypatch.setenv("DYN_WAVEPP_PIPELINE_PARALLEL_SIZE", "7")
    with pytest.raises(ConfigError, match=r"^DYN_WAVEPP_PIPELINE_PARALLEL_SIZE: 7 stages"):
        PrefillArgs.parse(["--model", str(tiny_llama)]).check(shape)
    monkeypatch.setenv("DYN_WAVEPP_PIPELINE_PARALLEL_SIZE", "1")
    monkeypatch.setenv("DYN_WAVEPP_DECODE_KV_TOKENS", "100")
    with pytest.raises(ConfigError, match=r"^DYN_WAVEPP_DECODE_KV_TOKENS gives a pool of 96 tokens"):
        AggArgs.parse(["--model", str(tiny_llama), "--kv-tokens", "65536"]).check(shape)


def test_a_flag_of_another_role_is_told_whose_it_is() -> None:
    for kind, flags, said in (
        (
            DecodeArgs,
            "--pipeline-parallel-size 2",
            "--pipeline-parallel-size: is a setting of workers that prefill; ",
        ),
        (
            DecodeArgs,
            "--max_num_batched_tokens=9",
            "--max_num_batched_tokens: is a setting of workers that prefill; ",
        ),
        (
            PrefillArgs,
            "--decode-kv-tokens 64",
            "--decode-kv-tokens: is a setting of workers that both prefill and decode",
        ),
        (
            AggArgs,
            "--migration-limit 3",
            "--migration-limit: is a setting of frontends; give it to python -m ",
        ),
        (PrefillArgs, "--router_mode kv", "--router_mode: is a setting of frontends; "),
    ):
        with pytest.raises(ConfigError) as caught:
            kind.parse(["--model", "/m", *flags.split()])
        assert str(caught.value).startswith(said)


def test_a_bad_variable_of_a_frontend_is_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_ROUTER_TEMPERATURE", "warm")
    PrefillArgs.parse(["--model", "/m"])


HELPS = {"prefill": PrefillArgs, "decode": DecodeArgs, "agg": AggArgs}


def help_of(args: type[PrefillArgs | DecodeArgs | AggArgs], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        args.parse(["--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("role", HELPS)
def test_the_help_has_our_flags_first_and_says_of_each_what_it_takes(
    role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = help_of(HELPS[role], capsys)
    assert shown.startswith(f"usage: python -m wavepp_worker.dynamo.{role} --model DIR [FLAG ...]\n")
    ours, _, dynamos = shown.partition("Dynamo Runtime Options:")
    assert "--discovery-backend" in dynamos
    entries = [" ".join(entry.split()) for entry in re.split(r"^  (?=--)", ours, flags=re.M)[1:]]
    assert "--discovery-backend" not in " ".join(entries)
    assert len(entries) > 12
    for entry in entries[1:]:
        assert re.match(r"--[a-z-]+(?:, --no-[a-z-]+| \S+) \w", entry), f"no words about {entry}"
        assert re.search(r"default|required", entry), f"no default of {entry}"
    said = " ".join(entries)
    assert "--dtype {auto,float32,bfloat16} " in said
    assert (
        "--request-timeout SECONDS Seconds after which a request that has not finished fails. (at least 0.1; "
        in said
    )


def test_the_help_begins_with_the_program_that_was_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/wavepp_worker/__main__.py", "--help"])
    shown = help_of(AggArgs, capsys)
    assert shown.startswith("usage: python -m wavepp_worker --model DIR [FLAG ...]\n")


def test_the_help_has_bounds_and_the_workers_own_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(help_of(PrefillArgs, capsys).split())
    assert "--partition N,N,... Layers per rank" in shown
    assert (
        "--pp N Pipeline ranks; each is a process. (at least 1; default: 1; also --pipeline-parallel-size)"
        in shown
    )
    assert "else the socket transport. (default: auto)" in shown
    assert "is silent. (at least 0.1; default: 60.0)" in shown
    host = "(default: 127.0.0.1 with discovery by files, else where requests are taken)"
    assert host in shown
    assert host in " ".join(help_of(DecodeArgs, capsys).split())
    assert "--wave-cost SECONDS,SECONDS,SECONDS Seconds" in shown
    shown = " ".join(help_of(AggArgs, capsys).split())
    assert (
        "--decode-kv-tokens N Tokens of KV this worker can hold, instead of kv_memory_fraction; 32768 of an engine "
        "without a worker. (at least 1; default: as --kv-tokens)" in shown
    )


def test_versions_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        PrefillArgs.parse(["--version"])
    assert left.value.code == 0
    assert " ".join(capsys.readouterr().out.split()) == versions()


def test_what_an_engine_would_refuse_is_refused_by_the_flag_that_was_given(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for args, flags, said in [
        (PrefillArgs, "--pp 7", "--pp: 7 stages"),
        (AggArgs, "--pp 7", "--pp: 7 stages"),
        (DecodeArgs, "--kv-tokens 100", "--kv-tokens gives a pool of 96 tokens"),
        (AggArgs, "--kv-tokens 65536 --decode-kv-tokens 100", "--decode-kv-tokens gives a pool of 96 tokens"),
        (AggArgs, "--device gpu", "--device: 'gpu' is none"),
        (AggArgs, "--model a/b/c", "--model: a/b/c does not exist"),
    ]:
        with pytest.raises(SystemExit) as left:
            args.parse_or_exit(["--model", str(tiny_llama), *flags.split()])
        assert left.value.code == 2
        assert capsys.readouterr().err.startswith(f"error: {said}")


def test_a_worker_whose_health_could_not_be_asked_does_not_start(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (port,) = HeldPorts().choose(1)
    with socket.create_server(("127.0.0.1", port)):
        monkeypatch.setenv("DYN_SYSTEM_PORT", str(port))
        monkeypatch.setenv("DYN_SYSTEM_HOST", "127.0.0.1")
        with pytest.raises(SystemExit) as left:
            PrefillArgs.parse_or_exit(["--model", str(tiny_llama)])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: DYN_SYSTEM_PORT: port {port} of 127.0.0.1 is in use")


def test_parsing_loads_no_tensor_library() -> None:
    code = (
        "import sys; from wavepp_worker.dynamo.args import AggArgs; AggArgs.parse(['--model', '/m']); "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", [AggArgs, DecodeArgs, PrefillArgs])
def test_a_chat_template_that_is_not_there_is_refused(
    kind: type[AggArgs | DecodeArgs | PrefillArgs], tiny_llama: Path
) -> None:
    args = kind.parse(["--model", str(tiny_llama), "--custom-jinja-template", "/nope.jinja"])
    with pytest.raises(ConfigError, match=r"^--custom-jinja-template: /nope\.jinja does not exist"):
        args.check(read_model_shape(tiny_llama))
