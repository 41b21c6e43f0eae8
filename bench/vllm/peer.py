"""vLLM's side, run by the Python that has vLLM: prints a JSON object for each cell. Imports nothing of this project.

One argument, a JSON object: ``model``, ``cells``, ``seed``, ``pp``, ``wave_tokens``, ``block``, ``kv_tokens`` and
``dtype``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Beside this file, which is run by its path.
from cells import traffic_of  # type: ignore[import-not-found]
from others import Others  # type: ignore[import-not-found]


def main() -> None:
    asked = json.loads(sys.argv[1])
    config = json.loads(Path(asked["model"], "config.json").read_text())
    cores, stages = sorted(os.sched_getaffinity(0)), asked["pp"]
    # A core, or as many as there are, for each stage; nothing is fetched, nothing reported.
    bound = "|".join(",".join(map(str, cores[stage::stages])) for stage in range(stages))
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": bound,
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    traffics = {cell: traffic_of(cell, asked["seed"], config["vocab_size"]) for cell in asked["cells"]}
    layers = -(-config["num_hidden_layers"] // stages)
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    number_bytes = {"bfloat16": 2, "float32": 4}[asked["dtype"]]
    token_bytes = 2 * config["num_key_value_heads"] * head * number_bytes * layers
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=asked["model"],
            skip_tokenizer_init=True,
            dtype=asked["dtype"],
            pipeline_parallel_size=stages,
            distributed_executor_backend="mp",
            max_model_len=max(traffic.longest for traffic in traffics.values()) + 8,
            max_num_batched_tokens=asked["wave_tokens"],
            max_num_seqs=128,
            block_size=asked["block"],
            enable_prefix_caching=True,
            kv_cache_memory_bytes=token_bytes * asked["kv_tokens"],
            disable_log_stats=True,
        )
    )
    one_token = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False)
    asked_before = 0

    def ask(prompts: list[list[int]], clients: int) -> dict[str, Any]:
        nonlocal asked_before
        waiting, cached = list(enumerate(prompts, asked_before))[::-1], 0
        sent: dict[int, float] = {}
        seconds: list[float] = []
        asked_before += len(prompts)
        others, begun = Others(), time.perf_counter()
        while waiting or sent:
            while waiting and len(sent) < clients:
                number, tokens = waiting.pop()
                sent[number] = time.perf_counter()
                engine.add_request(str(number), {"prompt_token_ids": tokens}, one_token)
            for output in engine.step():
                if output.finished:
                    number = int(output.request_id.split("-")[0])
                    seconds.append(time.perf_counter() - sent.pop(number))
                    cached += output.num_cached_tokens or 0
        took = time.perf_counter() - begun
        return {"seconds": took, "reused": cached, "completion": seconds, "others": others.share()}

    for cell, traffic in traffics.items():
        ask([[1] * min(traffic.longest, 2048)], 1)
        engine.reset_prefix_cache()
        if traffic.known:
            ask(traffic.known, 1)
        print(json.dumps({"cell": cell, **ask(traffic.prompts, traffic.clients)}), flush=True)


# vLLM starts processes of its own, which import this file.
if __name__ == "__main__":
    main()
