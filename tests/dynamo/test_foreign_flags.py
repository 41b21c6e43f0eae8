"""Flags of Dynamo's other workers: each is ours by another name, or refused in a sentence."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from dynamo import common
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs
from wavepp_worker.dynamo.foreign_flags import FOREIGN
from wavepp_worker.errors import ConfigError
from wavepp_worker.setting_names import flag_of, variable_of

INSTALLED = Path(common.__file__).parents[1]
ARGUMENTS = (
    "trtllm/backend_args.py",
    "vllm/backend_args.py",
    "common/configuration/groups/frontend_decoding_args.py",
)


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
            "--media-output-http-url h",
            "--media-output-http-url (or DYN_MEDIA_OUTPUT_HTTP_URL): this worker makes no",
        ),
    ],
)
def test_what_makes_no_sense_here_is_refused_in_a_sentence(words: str, sentence: str) -> None:
    said = refusal(PrefillArgs, *words.split())
    assert said is not None
    assert said.startswith(sentence)


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
