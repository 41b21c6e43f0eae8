"""Flags of Dynamo's other workers: each is ours by another name, or refused in a sentence."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import os
from pathlib import Path

import pytest
from dynamo import common
from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup, DynamoRuntimeConfig
from dynamo.common.constants import DisaggregationMode
from wavepp_worker.dynamo import foreign_flags
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs
from wavepp_worker.dynamo.flags import Parser
from wavepp_worker.dynamo.foreign_flags import FOREIGN, RUNTIMES
from wavepp_worker.dynamo.run_worker import worker_config
from wavepp_worker.errors import ConfigError
from wavepp_worker.setting_names import flag_of, variable_of

INSTALLED = Path(common.__file__).parents[1]
ARGUMENTS = (
    "trtllm/backend_args.py",
    "vllm/backend_args.py",
    "common/configuration/groups/frontend_decoding_args.py",
)
ROLE = DisaggregationMode.PREFILL
OBEYED_NAMES = (
    "namespace endpoint kv_state_endpoint discovery_backend request_plane event_plane response_plane "
    "dyn_tool_call_parser dyn_reasoning_parser dyn_default_thinking_mode exclude_tools_when_tool_choice_none "
    "custom_jinja_template endpoint_types dump_config_to health_check_payload engine_request_limit "
    "tcp_tls_cert_path tcp_tls_key_path tcp_tls_ca_cert_path tcp_tls_insecure tcp_tls_server_name "
    "tcp_tls_handshake_timeout_secs tcp_tls_client_cert_path tcp_tls_client_key_path "
    "tcp_tls_client_ca_cert_path nats_tls_ca_cert_path nats_tls_insecure nats_tls_client_cert_path "
    "nats_tls_client_key_path"
)
OBEYED = frozenset(OBEYED_NAMES.split())
"""Flags of Dynamo's own group that take effect here, of all versions: the planes' are newer than 1.4."""


def flags_of(file: str) -> set[str]:
    """Flags that a module of Dynamo's adds, and their obsolete names; read, as it imports what is not installed."""
    calls = [
        node for node in ast.walk(ast.parse((INSTALLED / file).read_text())) if isinstance(node, ast.Call)
    ]
    words = [
        word.value.value
        for call in calls
        for word in call.keywords
        if word.arg in ("flag_name", "obsolete_flag") and isinstance(word.value, ast.Constant)
    ]
    return {word for word in words if word}


def refusal(kind: type[PrefillArgs | DecodeArgs | AggArgs], *words: str) -> str | None:
    try:
        kind.parse(["--model", "/m", *words])
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("file", ARGUMENTS)
def test_every_flag_of_dynamos_workers_is_known(file: str) -> None:
    flags = flags_of(file) - {"--model", "--model-path"}
    assert flags
    for flag in flags:
        said = [refusal(kind, flag, "7") for kind in (PrefillArgs, DecodeArgs, AggArgs)]
        # What concerns ranks is no decode worker's.
        assert any(each is None or "unknown" not in each for each in said), f"{flag}: {said}"


def test_the_flags_of_another_worker_start_ours() -> None:
    trtllm = (
        "--model-path /m --served-model-name s --pipeline-parallel-size 4 --tensor-parallel-size 1 --kv-block-size 32 "
        "--max-num-tokens 2048 --max-batch-size 8 --max-seq-len 4096 --publish-kv-events --max-beam-width 1 "
        "--disaggregation-mode prefill --modality text --no-enable-attention-dp"
    )
    args = PrefillArgs.parse(trtllm.split())
    engine = args.engine
    assert (str(engine.model), engine.pp, engine.block_size) == ("/m", 4, 32)
    assert (engine.max_num_batched_tokens, engine.max_num_seqs, engine.max_model_len) == (2048, 8, 4096)
    assert (args.runtime.served_model_name, args.runtime.component) == ("s", "prefill")
    vllm = (
        "--model /m -tp 1 -pp 2 --block_size 8 --max_num_batched_tokens=64 --max-num-seqs 3 --max-logprobs 5 "
        "--enable-prefix-caching --enforce-eager --disaggregation-mode agg"
    )
    agg = AggArgs.parse(vllm.split())
    assert (agg.engine.pp, agg.engine.block_size, agg.decode.block_size) == (2, 8, 8)
    assert (agg.engine.max_num_batched_tokens, agg.engine.max_num_seqs, agg.decode.top_logprobs) == (64, 3, 5)
    assert DecodeArgs.parse(["--model-path", "/m", "--max-batch-size", "9"]).decode.max_num_seqs == 9


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--tensor-parallel-size 2",
            "--tensor-parallel-size: should be 1, not 2: a rank computes its layers on one ",
        ),
        ("-tp=2", "--tensor-parallel-size: should be 1, not 2: "),
        (
            "--no-enable-prefix-caching",
            "--enable-prefix-caching: should be true, not false: prefixes are always ",
        ),
        ("--quantization fp8", "--quantization: should be auto, not fp8: weights and KV are computed with"),
        ("--kv-transfer-config {}", "--kv-transfer-config: KV is handed over as --handoff says: "),
        (
            "--extra-engine-args f.yaml",
            "--extra-engine-args: settings of another engine mean nothing to this one; ",
        ),
        (
            "--trtllm.kv_cache_config.x 0.7",
            "--trtllm.kv_cache_config.x: settings of another engine mean nothing",
        ),
        ("--is-prefill-worker", "--is-prefill-worker: roles are given as --disaggregation-mode prefill, "),
        (
            "--connector nixl",
            "--connector (or DYN_CONNECTOR): should be none or null, not nixl: KV is handed over",
        ),
        (
            "--fpm-trace",
            "--fpm-trace (or DYN_FPM_TRACE): should be false, not true: waves are published",
        ),
        (
            "--dyn-structural-tag-scope always",
            "--dyn-structural-tag-scope (or DYN_STRUCTURAL_TAG_SCOPE): should be auto, not always: tool calls are ",
        ),
        (
            "--dyn-structural-tag-schema=strict",
            "--dyn-structural-tag-schema (or DYN_STRUCTURAL_TAG_SCHEMA): should be auto, not strict: tool calls",
        ),
        (
            "--media-output-http-url h",
            "--media-output-http-url (or DYN_MEDIA_OUTPUT_HTTP_URL): this worker makes no",
        ),
    ],
)
def test_what_makes_no_sense_here_is_refused_in_a_sentence(words: str, sentence: str) -> None:
    said = refusal(PrefillArgs, *words.split())
    assert said is not None
    assert said.startswith(sentence)


def own_flags() -> set[str]:
    """Flags of Dynamo's own group, by the names under which their values are kept."""
    parser = Parser(add_help=False)
    DynamoRuntimeArgGroup().add_arguments(parser)
    return {action.dest for action in parser._actions}


def test_every_flag_of_dynamos_own_group_is_obeyed_or_told_that_it_is_not() -> None:
    forgotten = own_flags() - OBEYED - RUNTIMES.keys()
    assert not forgotten, "make them take effect and name them in OBEYED, or refuse them in RUNTIMES"
    assert OBEYED.isdisjoint(RUNTIMES)


def test_what_is_said_to_be_obeyed_is_read(monkeypatch: pytest.MonkeyPatch, text_model: Path) -> None:
    read: set[str] = set()

    def note(options: object, name: str) -> object:
        read.add(name)
        return object.__getattribute__(options, name)

    class Noted(argparse.Namespace):
        __getattribute__ = note

    with monkeypatch.context() as patched:
        patched.setattr(os, "environ", dict(os.environ))
        patched.setattr(DynamoRuntimeConfig, "__getattribute__", note)
        runtime = PrefillArgs.parse(["--model", str(text_model), "--custom-jinja-template", "x"]).runtime
        options = Noted(**vars(runtime.options))
        worker_config(dataclasses.replace(runtime, options=options), str(text_model), ROLE)
    ours = {
        node.attr
        for file in Path(foreign_flags.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("options")
    }
    assert OBEYED & own_flags() <= read | ours


def test_frontends_are_not_told_to_send_structural_tags(text_model: Path) -> None:
    """As Dynamo 1.6 does unless told otherwise; requests with them are refused."""
    config = worker_config(PrefillArgs.parse(["--model", str(text_model)]).runtime, str(text_model), ROLE)
    assert getattr(config, "structural_tag", None) is None
    assert getattr(config, "structural_tag_mode", "off") == "off"


@pytest.mark.skipif("dyn_structural_tag" not in own_flags(), reason="this Dynamo has three flags for it")
def test_the_newer_flag_for_structural_tags_takes_false_alone() -> None:
    for value in ("true", '{"scope": "auto"}'):
        said = refusal(PrefillArgs, f"--dyn-structural-tag={value}")
        assert said is not None
        assert said.startswith("--dyn-structural-tag (or DYN_STRUCTURAL_TAG): should be false")
        assert "config(" not in said
    assert refusal(PrefillArgs, "--dyn-structural-tag=false") is None


def test_every_flag_that_is_refused_says_why_and_never_is_a_setting_of_ours() -> None:
    ours = {name for kind in (PrefillArgs, DecodeArgs, AggArgs) for name in kind.settings()}
    for name, foreign in FOREIGN.items():
        assert name not in ours
        said = refusal(PrefillArgs, flag_of(name), "nonsense")
        assert said is not None
        assert said.endswith(foreign.why), name
        for value in foreign.taken:
            assert refusal(PrefillArgs, f"{flag_of(name)}={value}") is None, name


def test_two_names_of_one_setting_are_refused_together() -> None:
    assert refusal(PrefillArgs, "--model-path", "/n") == (
        "--model-path and --model are two names of one setting; give one of them"
    )


def test_a_variable_of_such_a_name_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable_of("tensor_parallel_size"), "2")
    said = refusal(DecodeArgs)
    assert said is not None
    assert said.startswith("DYN_WAVEPP_TENSOR_PARALLEL_SIZE: should be 1, not 2: ")
    monkeypatch.setenv(variable_of("tensor_parallel_size"), "1")
    assert refusal(DecodeArgs) is None


def test_adapters_are_not_named_and_switched_off_together(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = "--lora-modules=a=/a"
    for kind in (PrefillArgs, DecodeArgs, AggArgs):
        for off in (["--no-enable-lora"], ["--enable-lora", "false"], ["--enable-lora=False"]):
            said = refusal(kind, modules, *off)
            assert (
                said == "--enable-lora: is false, but --lora-modules names adapters; leave one of the two out"
            )
            assert refusal(kind, *off) is None
        assert refusal(kind, modules, "--enable-lora") is None
    monkeypatch.setenv(variable_of("lora_modules"), "a=/a")
    monkeypatch.setenv(variable_of("enable_lora"), "false")
    said = refusal(PrefillArgs)
    assert said is not None
    assert said.startswith("DYN_WAVEPP_ENABLE_LORA: is false, but DYN_WAVEPP_LORA_MODULES names adapters; ")
