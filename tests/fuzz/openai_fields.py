"""Every field of a completion request that the frontend accepts, each with values it could take: strategies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fuzz.odd_values import FRACTIONS, TEXTS, WHOLE_NUMBERS

Strategy = st.SearchStrategy[Any]

BOOLEANS = st.booleans()
COUNTS = st.integers(1, 40) | WHOLE_NUMBERS
SHARES = st.floats(0, 1) | FRACTIONS
PENALTIES = st.floats(-2, 2) | FRACTIONS
TEMPERATURES = st.floats(0, 2) | FRACTIONS
FEW = st.integers(0, 5) | WHOLE_NUMBERS
ONE = st.just(1) | WHOLE_NUMBERS
TOKEN_LISTS = st.lists(st.integers(0, 299), min_size=1, max_size=40)
STOPS = TEXTS | st.lists(TEXTS, max_size=6)
SCHEMAS = st.sampled_from([{"type": "object"}, {"type": "string", "pattern": "a*"}, {"$ref": "#"}])
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
FORMATS = st.sampled_from(
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
    ]
)

NVEXT: dict[str, Strategy] = {
    "greed_sampling": BOOLEANS,
    "use_raw_prompt": BOOLEANS,
    "annotations": st.lists(
        st.sampled_from(
            ["request_id", "formatted_prompt", "token_ids", "llm_metrics", "query_instance_id", "a:b"]
        ),
        max_size=3,
    ),
    "backend_instance_id": WHOLE_NUMBERS,
    "token_data": TOKEN_LISTS | st.lists(WHOLE_NUMBERS, max_size=3),
    "max_thinking_tokens": WHOLE_NUMBERS,
    "cache_salt": TEXTS,
    "extra_fields": st.lists(
        st.sampled_from(["worker_id", "timing", "token_ids", "completion_token_ids", "routed_experts", "x"]),
        max_size=3,
    ),
    "metadata_upload": st.sampled_from(
        [{"url": "http://127.0.0.1:1/"}, {"url": ""}, {"url": "file:///tmp/x"}]
    ),
    "prefill_worker_id": WHOLE_NUMBERS,
    "decode_worker_id": WHOLE_NUMBERS,
    "dp_rank": WHOLE_NUMBERS,
    "prefill_dp_rank": WHOLE_NUMBERS,
    "agent_hints": st.fixed_dictionaries(
        {},
        optional={
            "priority": WHOLE_NUMBERS,
            "strict_priority": WHOLE_NUMBERS,
            "osl": WHOLE_NUMBERS,
            "speculative_prefill": BOOLEANS,
            "latency_sensitivity": FRACTIONS,
        },
    ),
    "request_timestamp_ms": FRACTIONS | WHOLE_NUMBERS,
    "routing_constraints": st.sampled_from(
        [{"required_taints": ["x"]}, {"preferred_taints": {"x": 1.0}}, {"required_taints": []}, {}]
    ),
    "router": st.sampled_from([{}, {"ttft_target": 1.0}, {"itl_target": -1}]),
}

COMMON: dict[str, Strategy] = {
    "max_tokens": COUNTS,
    "min_tokens": COUNTS,
    "temperature": TEMPERATURES,
    "top_p": SHARES,
    "top_k": COUNTS,
    "min_p": SHARES,
    "n": ONE,
    "seed": WHOLE_NUMBERS,
    "presence_penalty": PENALTIES,
    "frequency_penalty": PENALTIES,
    "repetition_penalty": TEMPERATURES,
    "stop": STOPS,
    "stop_token_ids": st.lists(WHOLE_NUMBERS, max_size=8),
    "stream": BOOLEANS,
    "stream_options": st.sampled_from(
        [{"include_usage": True}, {"continuous_usage_stats": True, "include_usage": True}, {}]
    ),
    "logit_bias": st.sampled_from([{}, {"1": 1}, {"1": -100.0, "x": 5}]),
    "user": TEXTS,
    "ignore_eos": BOOLEANS,
    "include_stop_str_in_output": BOOLEANS,
    "skip_special_tokens": BOOLEANS,
    "prompt_logprobs": WHOLE_NUMBERS,
    "return_tokens_as_token_ids": BOOLEANS,
    "allowed_token_ids": st.lists(WHOLE_NUMBERS, max_size=3),
    "bad_words_token_ids": st.lists(st.lists(WHOLE_NUMBERS, max_size=3), max_size=2),
    "logprob_token_ids": st.lists(WHOLE_NUMBERS, max_size=3),
    "detokenize": BOOLEANS,
    "guided_json": SCHEMAS,
    "guided_regex": TEXTS,
    "guided_grammar": TEXTS,
    "guided_choice": st.lists(TEXTS, max_size=3),
    "guided_decoding_backend": TEXTS,
    "guided_whitespace_pattern": TEXTS,
    "cache_salt": TEXTS,
    "priority": WHOLE_NUMBERS,
    "truncate_prompt_tokens": WHOLE_NUMBERS,
    "metadata": st.dictionaries(TEXTS, TEXTS, max_size=2),
    "nvext": st.fixed_dictionaries({}, optional=NVEXT),
}

COMPLETION: dict[str, Strategy] = {
    **COMMON,
    "prompt": TEXTS | TOKEN_LISTS | st.lists(TEXTS, max_size=4) | st.lists(TOKEN_LISTS, max_size=4),
    "prompt_embeds": TEXTS,
    "suffix": TEXTS,
    "echo": BOOLEANS,
    "best_of": ONE,
    "logprobs": FEW,
}

PARTS = st.sampled_from(
    [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}},
        {"type": "refusal", "refusal": "no"},
        {"type": "x"},
    ]
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "assistant", "tool", "developer", "function", "x"]),
            "content": TEXTS | st.lists(PARTS, max_size=3) | st.none(),
        },
        optional={
            "name": TEXTS,
            "tool_call_id": TEXTS,
            "tool_calls": st.sampled_from(
                [[], [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{"}}]]
            ),
            "reasoning_content": TEXTS,
        },
    ),
    max_size=4,
)
CHAT: dict[str, Strategy] = {
    **COMMON,
    "messages": MESSAGES,
    "max_completion_tokens": COUNTS,
    "logprobs": BOOLEANS,
    "top_logprobs": FEW,
    "tools": st.lists(st.just(TOOL), max_size=3),
    "tool_choice": st.sampled_from(
        ["none", "auto", "required", {"type": "function", "function": {"name": "look"}}]
    ),
    "parallel_tool_calls": BOOLEANS,
    "functions": st.just([{"name": "f"}]),
    "function_call": TEXTS,
    "response_format": FORMATS,
    "reasoning_effort": st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh", "max", "x"]),
    "modalities": st.lists(st.sampled_from(["text", "audio"]), max_size=2),
    "audio": st.just({"voice": "alloy", "format": "wav"}),
    "prediction": st.just({"type": "content", "content": "a"}),
    "service_tier": st.sampled_from(["auto", "default", "flex"]),
    "store": BOOLEANS,
    "web_search_options": st.just({}),
    "chat_template": st.sampled_from(["{{ messages }}", "{% for x in range(10**9) %}a{% endfor %}", "{{"]),
    "chat_template_args": st.sampled_from([{}, {"messages": []}, {"enable_thinking": True}, {"x": "\0"}]),
    "chat_template_kwargs": st.sampled_from([{}, {"add_generation_prompt": False}]),
    "add_generation_prompt": BOOLEANS,
    "continue_final_message": BOOLEANS,
    "mm_processor_kwargs": st.sampled_from([{}, {"a": 1}]),
    "media_io_kwargs": st.sampled_from([{}, {"image": {"a": 1}}]),
    "thinking": st.sampled_from([{"type": "enabled"}, True]),
    "documents": st.just([{"text": "a"}]),
}

INPUT_ITEMS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "x"]), "content": TEXTS | st.lists(PARTS, max_size=2)},
        optional={"type": st.sampled_from(["message", "function_call_output", "reasoning"])},
    ),
    max_size=3,
)
RESPONSES: dict[str, Strategy] = {
    "input": TEXTS | INPUT_ITEMS,
    "instructions": TEXTS,
    "max_output_tokens": COUNTS,
    "temperature": TEMPERATURES,
    "top_p": SHARES,
    "top_logprobs": FEW,
    "stream": BOOLEANS,
    "background": BOOLEANS,
    "store": BOOLEANS,
    "previous_response_id": TEXTS,
    "tools": st.sampled_from([[], [{"type": "function", "name": "f", "parameters": {}}], [{"type": "mcp"}]]),
    "tool_choice": st.sampled_from(["auto", "required", {"type": "function", "name": "f"}]),
    "text": st.sampled_from([{"format": {"type": "text"}}, {"format": {"type": "json_object"}}]),
    "reasoning": st.sampled_from([{"effort": "low"}, {}]),
    "truncation": st.sampled_from(["auto", "disabled"]),
    "include": st.lists(TEXTS, max_size=2),
    "metadata": st.dictionaries(TEXTS, TEXTS, max_size=2),
    "service_tier": st.sampled_from(["auto", "flex"]),
    "user": TEXTS,
    "nvext": st.fixed_dictionaries({}, optional=NVEXT),
}
