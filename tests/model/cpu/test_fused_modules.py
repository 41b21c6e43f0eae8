"""Which of transformers' modules compute elementwise chains in one pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.glm.configuration_glm import GlmConfig
from transformers.models.glm.modeling_glm import GlmAttention
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.olmo.configuration_olmo import OlmoConfig
from transformers.models.olmo.modeling_olmo import OlmoAttention
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from wavepp_worker.model.cpu.fused_modules import fuse_attention, fuse_elementwise
from wavepp_worker.model.cpu.native_library import computes_on
from wavepp_worker.model.cpu.native_linear import make_native

pytestmark = pytest.mark.skipif(
    not computes_on(torch.bfloat16, torch.device("cpu")),
    reason="no compiler at installation, or a CPU without AVX2",
)


def test_only_modules_whose_code_is_known_are_changed() -> None:
    def changed(module: torch.nn.Module) -> bool:
        module = module.bfloat16()
        fuse_elementwise(module)
        fuse_attention(module, None)
        return "forward" in vars(module)

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 2}
    assert changed(LlamaRMSNorm(8))
    assert changed(LlamaMLP(LlamaConfig(**sizes)))
    assert changed(Qwen3Attention(Qwen3Config(**sizes, num_key_value_heads=1, head_dim=16), 0))
    assert not changed(LlamaMLP(LlamaConfig(**sizes, hidden_act="gelu")))
    assert not changed(Gemma2RMSNorm(8)), "its weight is less by one"
    assert not changed(OlmoAttention(OlmoConfig(**sizes), 0)), "it may clip"
    assert not changed(GlmAttention(GlmConfig(**sizes, num_key_value_heads=1, head_dim=16), 0)), (
        "it is Llama's, but rotates pairs that lie side by side"
    )


@pytest.mark.parametrize("tokens", [3, 100])
@pytest.mark.parametrize("hooked", [False, True])
def test_a_gated_layer_is_as_near_to_float32_as_torchs_own(tokens: int, hooked: bool) -> None:
    """Whether the activation ends a matrix product, for many tokens, or not, as where an adapter is a hook."""
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=64, intermediate_size=96, mlp_bias=True)
    layer, x = LlamaMLP(config).bfloat16(), torch.randn(1, tokens, 64).bfloat16()
    called = []
    if hooked:
        layer.up_proj.register_forward_hook(lambda *_: called.append(1))
    with torch.inference_mode():
        own, truth = layer(x).float(), LlamaMLP.forward(layer.float(), x.float())
        layer.bfloat16()
        make_native(layer)
        fuse_elementwise(layer)
        called.clear()
        error = (layer(x).float() - truth).abs()
    assert error.max() <= 1.5 * (own - truth).abs().max()
    assert len(called) == hooked
