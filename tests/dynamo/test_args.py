from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_shape import read_model_shape
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
        assert re.match(r"--[a-z-]+ \S+ \w", entry), f"no words about {entry}"
        assert re.search(r"default|required", entry), f"no default of {entry}"
    said = " ".join(entries)
    assert "--dtype {auto,float32,bfloat16} " in said
    assert (
        "--request-timeout SECONDS Seconds after which a request that has not finished fails. (above 0; "
        in said
    )


def test_the_help_has_bounds_and_the_workers_own_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(help_of(PrefillArgs, capsys).split())
    assert "--partition N,N,... Layers per rank" in shown
    assert "--pp N Pipeline ranks; each is a process. (at least 1; default: 1)" in shown
    assert "else the socket transport. (default: auto)" in shown
    assert "is silent. (above 0; default: 60.0)" in shown
    assert "--wave-cost SECONDS,SECONDS,SECONDS Seconds" in shown
    shown = " ".join(help_of(AggArgs, capsys).split())
    assert (
        "--decode-kv-tokens N Tokens of KV this worker can hold. (at least 1; default: as --kv-tokens)"
        in shown
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
        (AggArgs, "--model org/some-7B", "--model: there is no directory org/some-7B here"),
    ]:
        with pytest.raises(SystemExit) as left:
            args.parse_or_exit(["--model", str(tiny_llama), *flags.split()])
        assert left.value.code == 2
        assert capsys.readouterr().err.startswith(f"error: {said}")


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
