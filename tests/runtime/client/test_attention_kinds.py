"""Kinds of attention other than the plain one on real ranks: windows of their own blocks, latents, picked tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.engine import DecodeEngine
from wavepp_worker.decode.engine_io import DecodeRequest
from wavepp_worker.handoff.offer import FirstToken
from wavepp_worker.handoff.prefill.bootstrap_server import BootstrapServer
from wavepp_worker.runtime.protocol.index_delta import IndexDelta
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.model.test_packing import FAMILIES
from tests.support.decode_bench import Collector
from tests.support.handoff_sides import room_of
from tests.support.prompts import PromptMaker
from tests.support.reference import Reference, assert_right


def test_windows_let_go_and_come_back_from_host_and_disk(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Ranks with both kinds of layers, and with either alone, rank 0 with windows; devices hold two prompts at most."""
    model = tiny_model("gpt_oss")
    reference, maker = Reference(model, attention="eager"), PromptMaker(seed=6)
    config = EngineConfig(
        model=model,
        dtype="float32",
        pp=4,
        partition=(1, 1, 2, 2),
        max_num_batched_tokens=37,
        block_size=8,
        kv_tokens=(300, 240, 280, 260),
        max_model_len=200,
        max_num_seqs=3,
        host_kv_tokens=(200, 300, 100, 200),
        disk_kv_tokens=1600,
        disk_path=tmp_path / "kv",
    )
    prompts = [maker.tokens(120) for _ in range(4)]
    told: list[IndexDelta] = []
    with PrefillEngine(config, on_index=told.append) as engine:
        for again in (False, True):
            for prompt in prompts:
                result = engine.prefill(prompt, top_logprobs=5)
                assert result.reused_tokens == (112 if again else 0)
                assert_right(reference, prompt, result)
        together = [[*prompts[0][:at], *maker.tokens(40)] for at in (24, 60, 100, 112)]
        requests = [PrefillRequest.of(f"r{n}", tokens) for n, tokens in enumerate(together)]
        futures = [engine.submit(request) for request in requests]
        for prompt, future in zip(together, futures, strict=True):
            assert_right(reference, prompt, future.result(120))
        engine.audit()
    # A window does not know what a prompt begins with: rank 0 keeps account of that without a layer that has it.
    assert sum(len(delta.stored) for delta in told) >= 4 * 15
    assert {file.suffix for file in (tmp_path / "kv").iterdir()} >= {".blocks", ".last-24"}
    with PrefillEngine(config) as engine:
        result = engine.prefill(prompts[3], top_logprobs=5)
        assert result.reused_tokens == 112
        assert_right(reference, prompts[3], result)
        engine.audit()


@pytest.mark.parametrize(
    ("family", "partition", "transport"),
    [
        ("glm_moe_dsa", (2, 2, 2), "socket"),
        ("gpt_oss", (1, 1, 4), "socket"),
        ("gpt_oss", (1, 1, 4), "nixl"),
        ("deepseek_v3", (4, 2), "socket"),
        *(
            pytest.param(family, (2, 4), transport, marks=pytest.mark.soak)
            for transport in ("socket", "nixl")
            for family in FAMILIES
            if family not in ("glm_moe_dsa", "gpt_oss", "deepseek_v3", "qwen3_next", "kimi_linear")
        ),
    ],
)
def test_text_that_a_decode_worker_goes_on_with_is_that_of_generate(
    family: str,
    partition: tuple[int, ...],
    transport: Literal["socket", "nixl"],
    tiny_model: Callable[[str], Path],
) -> None:
    """Cold and reused; one rank begins with picks of another, some have windows alone, and one latents alone."""
    if transport == "nixl":
        pytest.importorskip("nixl", reason="NIXL is not installed; pip install '.[nixl]'")
    model = tiny_model(family)
    reference, maker = Reference(model, attention="eager"), PromptMaker(seed=7)
    config = EngineConfig(
        model=model,
        dtype="float32",
        pp=len(partition),
        partition=partition,
        max_num_batched_tokens=33,
        block_size=4,
        kv_tokens=400,
        max_model_len=200,
        handoff=transport,
    )
    server = BootstrapServer("127.0.0.1", 0, on_cancel=lambda _: None)
    decoding = DecodeConfig(model=model, dtype="float32", kv_tokens=500, max_model_len=250, block_size=5)
    prompt = maker.tokens(90)
    try:
        with PrefillEngine(config) as engine, DecodeEngine(decoding) as decode:
            for room, reused in enumerate((0, 88), 1):
                request, outputs = PrefillRequest.of(f"r{room}", prompt, handoff=True), Collector()
                result = engine.submit(request).result(120)
                assert result.reused_tokens == reused
                assert_right(reference, prompt, result)
                server.register(room, engine.offer(request.request_id))
                server.finish(room, FirstToken(first=result.first, reused_tokens=reused))
                at = room_of(server, room)
                decode.submit(
                    DecodeRequest(request_id=f"d{room}", tokens=request.tokens, max_tokens=40, handoff=at),
                    outputs,
                )
                assert outputs.last.error is None
                assert outputs.ids == reference.generate(prompt, 40)
            engine.audit()
            decode.audit()
    finally:
        server.close()
