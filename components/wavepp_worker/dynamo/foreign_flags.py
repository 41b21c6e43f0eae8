"""Flags of Dynamo's workers for TensorRT-LLM and vLLM that are no setting here: why, and what there is instead.

A few ask for what this worker does anyway, or switch off what it has not: such values are taken. All others are refused
in a sentence, so that none is accepted and then not obeyed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from wavepp_worker.dynamo.flags import Parser
from wavepp_worker.errors import ConfigError
from wavepp_worker.setting_names import flag_of, variable_of

_PLACE = "foreign "
"""Begins where such a flag's value is kept; no setting's name has a blank in it."""
_LEAVE = "leave it out"
_ADAPTERS = "enable_lora"
"""Whether there are adapters, which those that are named say as well."""


@dataclass(frozen=True)
class Foreign:
    """A flag that is no setting here.

    Attributes:
        why: what there is instead, or why there is nothing; follows the flag's name and a colon.
        taken: values that ask for what is so anyway.
    """

    why: str
    taken: tuple[str, ...] = ()


def _several(why: str, names: str, *taken: str) -> dict[str, Foreign]:
    return {name: Foreign(why, taken) for name in names.split()}


_MULTIMODAL = f"this worker takes text only; {_LEAVE}"
_DIFFUSION = f"this worker makes no images or videos; {_LEAVE}"
_QUANTISED = (
    "weights and KV are computed with and kept as dtype says, whatever the files of a quantised model hold; "
    f"{_LEAVE} and set --dtype"
)
_HOSTS = f"the ranks of a replica run on one host, as many as --pp; {_LEAVE}, and start a worker on each host"
_RAW = f"settings of another engine mean nothing to this one; {_LEAVE} and see --help for what there is"
_LORA = f"adapters of any number and rank are loaded at the start, as --lora-modules names them; {_LEAVE}"
_SPECULATIVE = f"tokens are not guessed ahead; {_LEAVE}"
_PROFILING = f"this worker does not measure itself at its start; {_LEAVE} (docs/benchmarks.md measures it from outside)"
_GRAMMAR = f"constrained answers are compiled by llguidance (docs/requests.md); {_LEAVE}"
_COMPILED = f"layers run as they are, without CUDA graphs or compilation; {_LEAVE}"
_ROLE = "roles are given as --disaggregation-mode prefill, decode or agg"
_LOGS = f"what is logged DYN_LOG says; {_LEAVE}"
_FETCHED = (
    f"the newest files of the model are taken; {_LEAVE}, or give --model a directory with those you want"
)
_ORDER = f"waves are planned by --planner and requests admitted by --order; {_LEAVE}"
_TOKENIZER = f"the model directory's own tokenizer is used, by the frontend; {_LEAVE}"
_POOLING = f"this worker generates text and nothing else; {_LEAVE}"
_TAGS = f"tool calls are constrained by the tools' schemas, not by structural tags; {_LEAVE}"

FOREIGN: Mapping[str, Foreign] = MappingProxyType(
    {
        **_several(
            "a rank computes its layers on one device; more devices are more ranks, --pp",
            "tensor_parallel_size expert_parallel_size decode_context_parallel_size prefill_context_parallel_size",
            "1",
        ),
        **_several(
            "a worker is one replica; start as many workers as there shall be replicas",
            "data_parallel_size data_parallel_size_local",
            "1",
        ),
        **_several(
            f"a rank computes its layers on one device; {_LEAVE}",
            "enable_attention_dp enable_expert_parallel enable_eplb data_parallel_hybrid_lb data_parallel_external_lb "
            "enable_dbo",
            "false",
        ),
        **_several(
            _HOSTS,
            "gpus_per_node headless nnodes node_rank master_addr master_port data_parallel_address data_parallel_rank "
            "data_parallel_rpc_port data_parallel_start_rank data_parallel_backend",
        ),
        **_several(
            f"ranks are processes of this host; {_LEAVE}", "distributed_executor_backend worker_cls", "mp"
        ),
        **_several(
            f"beams are not searched, and requests that ask for it are refused; {_LEAVE}",
            "max_beam_width",
            "1",
        ),
        **_several(
            "prefixes are always reused; where tenants must not share them, requests carry a cache_salt",
            "enable_prefix_caching",
            "true",
        ),
        **_several(
            "prompts are always computed in chunks, of at most --max-num-batched-tokens",
            "enable_chunked_prefill",
            "true",
        ),
        **_several(
            "KV events are always published; a frontend started with --no-router-kv-events does not listen to them",
            "publish_kv_events publish_events_and_metrics",
            "true",
        ),
        **_several(
            "metrics are always at /metrics of DYN_SYSTEM_PORT",
            "publish_metrics",
            "true",
        ),
        **_several(f"{_COMPILED}", "enforce_eager disable_torch_compile", "true"),
        **_several(
            _COMPILED,
            "enable_cuda_graph enable_fullgraph enable_layerwise_nvtx_marker",
            "false",
        ),
        **_several(
            _COMPILED,
            "compilation_config optimization_level cudagraph_capture_sizes max_cudagraph_capture_size "
            "attention_backend attention_config skip_warmup",
        ),
        **_several(
            f"weights are read from safetensors; {_LEAVE}", "load_format", "auto", "safetensors", "hf"
        ),
        **_several(
            _RAW, "model_loader_extra_config extra_engine_args override_engine_args additional_config"
        ),
        **_several(_QUANTISED, "quantization quant_algo calculate_kv_scales", "auto"),
        **_several(_QUANTISED, "quant_dynamic torch_dtype"),
        **_several(_MULTIMODAL, "enable_multimodal route_to_encoder frontend_decoding", "false"),
        **_several(_MULTIMODAL, "modality", "text"),
        **_several(
            _MULTIMODAL,
            "encode_endpoint allowed_local_media_path allowed_media_domains max_file_size_mb mm_prompt_template "
            "custom_encoder_class embedding_transfer_mode limit_mm_per_prompt mm_processor_kwargs media_io_kwargs "
            "mm_processor_cache_gb mm_encoder_tp_mode language_model_only",
        ),
        **_several(
            _DIFFUSION,
            "enable_teacache teacache_use_ret_steps teacache_thresh attn_backend dit_ulysses_size dit_ring_size "
            "dit_cfg_size default_height default_width default_num_frames default_num_images_per_prompt "
            "default_num_inference_steps default_guidance_scale",
        ),
        **_several(_POOLING, "runner", "auto", "generate"),
        **_several(_POOLING, "convert pooler_config"),
        **_several(
            _POOLING, "embedding_worker embedding_frontend_tokenization classify_worker realtime", "false"
        ),
        **_several(_POOLING, "embedding_worker_processes", "1"),
        **_several(_GRAMMAR, "guided_decoding_backend", "llguidance", "guidance", "auto"),
        **_several(_GRAMMAR, "structured_outputs_config"),
        **_several(
            "requests of one conversation share its beginning, which the router knows; frontends have "
            f"--router-mode kv for that; {_LEAVE}",
            "conversation_affinity",
            "false",
        ),
        **_several(
            f"a rank computes its layers on one device, so there are no DP ranks to choose from; {_LEAVE}",
            "conversation_affinity_dp_rank_source",
            "engine",
        ),
        **_several(_LORA, _ADAPTERS, "true", "false"),
        **_several(_LORA, "max_loras max_lora_rank max_cpu_loras lora_dtype default_mm_loras"),
        **_several(_SPECULATIVE, "speculative_config"),
        **_several(
            "KV is handed over as --handoff says: auto, nixl, or socket; a vLLM connector is not needed",
            "kv_transfer_config",
        ),
        **_several(f"KV events go through Dynamo; {_LEAVE}", "kv_events_config"),
        **_several(
            "the KV pool is given in tokens, --kv-tokens",
            "num_gpu_blocks_override kv_cache_memory_bytes",
        ),
        **_several(
            "KV beyond the device's is given in tokens, --host-kv-tokens and --disk-kv-tokens",
            "kv_offloading_size kv_offloading_backend swap_space",
        ),
        **_several(f"weights stay on the device; {_LEAVE}, and use more ranks", "cpu_offload_gb", "0"),
        **_several(
            _PROFILING,
            "benchmark_collect_imbalanced benchmark_hybrid_live_state benchmark_randomize_kda_state",
            "false",
        ),
        **_several(
            _PROFILING,
            "benchmark_mode benchmark_points_file benchmark_warmup_iterations benchmark_output_path "
            "benchmark_max_batch_size",
        ),
        **_several(
            _PROFILING,
            "benchmark_timeout prefill_max_new_token_samples prefill_max_kv_read_token_samples "
            "decode_max_kv_read_token_samples decode_max_batch_size_samples prefix_max_batch_size_samples "
            "benchmark_prefill_granularity benchmark_prefill_kv_read_granularity benchmark_prefill_batch_granularity "
            "benchmark_decode_length_granularity benchmark_decode_batch_granularity",
        ),
        **_several(
            f"weights are not changed while a worker runs; {_LEAVE}", "enable_rl enable_sleep_mode", "false"
        ),
        **_several(
            f"there is no standby engine; start a second worker and {_LEAVE}", "gms_shadow_mode", "false"
        ),
        **_several(
            _FETCHED, "revision code_revision tokenizer_revision download_dir model_express_url hf_token"
        ),
        **_several(f"code of a model is never run; {_LEAVE}", "trust_remote_code", "false"),
        **_several(_TOKENIZER, "use_vllm_tokenizer skip_tokenizer_init", "false"),
        **_several(_TOKENIZER, "tokenizer tokenizer_mode"),
        **_several(
            f"the model directory's config.json counts; change it there and {_LEAVE}",
            "hf_overrides hf_config_path rope_scaling rope_theta generation_config override_generation_config",
        ),
        **_several(f"requests carry their own seed; {_LEAVE}", "seed"),
        **_several(
            _ORDER,
            "scheduling_policy async_scheduling scheduler_cls max_num_partial_prefills max_long_partial_prefills "
            "long_prefill_token_threshold stream_interval disable_hybrid_kv_cache_manager",
        ),
        **_several(
            _LOGS,
            "disable_log_stats disable_log_requests enable_log_requests max_log_len otlp_traces_endpoint "
            "collect_detailed_traces",
        ),
        **_several(
            "parsers of tool calls and reasoning are --dyn-tool-call-parser and --dyn-reasoning-parser",
            "tool_call_parser reasoning_parser enable_auto_tool_choice",
        ),
        **_several(_ROLE, "is_prefill_worker is_decode_worker prefill_worker decode_worker"),
        **_several(
            "decode workers that send long prompts to a queue are those of dynamo serve graphs:disagg_wavepp_queue; "
            "how long is --max-local-prefill-length (docs/queue.md)",
            "conditional_disagg",
        ),
    }
)
"""Such flags by their names with ``_``."""

RUNTIMES: Mapping[str, Foreign] = MappingProxyType(
    {
        "connector": Foreign("KV is handed over as --handoff says: auto, nixl, or socket", ("none", "null")),
        "fpm_trace": Foreign(
            f"waves are published to the planner in any case, and written to no file; {_LEAVE}", ("false",)
        ),
        **_several(_TAGS, "dyn_enable_structural_tag dyn_structural_tag", "false"),
        **_several(_TAGS, "dyn_structural_tag_scope dyn_structural_tag_schema", "auto"),
        "multimodal_embedding_cache_capacity_gb": Foreign(_MULTIMODAL, ("0", "0.0")),
        "multimodal_embedding_cache_publisher": Foreign(_MULTIMODAL, ("false",)),
        "output_modalities": Foreign(_POOLING, ("text",)),
        "media_output_fs_url": Foreign(_DIFFUSION, ("file:///tmp/dynamo_media",)),
        "media_output_http_url": Foreign(_DIFFUSION),
    }
)
"""Flags of Dynamo's own group that workers of other kinds obey, with what they are unless given."""


class _Keep(argparse.Action):
    """Keeps what a foreign flag was given."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        value = " ".join(map(str, values)) if values else "true"
        negated = str(option_string).startswith("--no-")
        setattr(namespace, self.dest, "false" if negated else value)


def add_foreign(parser: Parser) -> None:
    """Let ``parser`` know such flags; its help does not show them."""
    for name in FOREIGN:
        spellings = (flag_of(name), flag_of(f"no_{name}"))
        parser.add_argument(
            *spellings,
            action=_Keep,
            nargs="*",
            dest=_PLACE + name,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def check_foreign(given: dict[str, Any], adapters: str | None = None) -> None:
    """Take such flags out of what a command line gave, and refuse those that ask for what is not so.

    Variables of their names count as well.

    Args:
        given: values by name; changed.
        adapters: how LoRA adapters were given; None if there are none.

    Raises:
        ConfigError: says why, and what there is instead.
    """
    for name, foreign in FOREIGN.items():
        flag, variable = _PLACE + name, variable_of(name)
        if flag in given:
            written, value = flag_of(name), given.pop(flag)
        elif os.environ.get(variable):
            written, value = variable, os.environ[variable]
        else:
            continue
        _check(written, value, foreign)
        if name == _ADAPTERS and value.lower() == "false" and adapters is not None:
            raise ConfigError(f"{written}: is false, but {adapters} names adapters; leave one of the two out")


def check_options(options: Any, flags: Mapping[str, Foreign] = RUNTIMES) -> None:
    """Refuse flags of Dynamo's own, or their variables, that would not be obeyed here.

    Args:
        options: values by attribute, as Dynamo has parsed them.
        flags: those that are not; by default a worker's.

    Raises:
        ConfigError: says why, and what there is instead.
    """
    for name, foreign in flags.items():
        value = getattr(options, name, None)
        for each in value if isinstance(value, list) else [] if value is None else [value]:
            _check(f"{flag_of(name)} (or DYN_{name.removeprefix('dyn_').upper()})", each, foreign)


def _check(written: str, value: Any, foreign: Foreign) -> None:
    text = str(value).lower()
    if text in foreign.taken:
        return
    if not foreign.taken:
        raise ConfigError(f"{written}: {foreign.why}")
    # What Dynamo has parsed into an object of its own does not look as it was written.
    but = f", not {value if isinstance(value, str) else text}" if isinstance(value, str | int | float) else ""
    raise ConfigError(f"{written}: should be {' or '.join(foreign.taken)}{but}: {foreign.why}")
