"""Workers of one graph serve one model in one way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model import dtype_choice
from wavepp_worker.serve.graph import resolve
from wavepp_worker.serve.launch_plan import LaunchPlan, Options, make_launch_plan

from tests.support.lora_adapters import make_adapter

pytestmark = pytest.mark.usefixtures("in_the_repository")


def plan(model: Path, **sections: dict[str, object]) -> LaunchPlan:
    config = {"Common": {"model": str(model)}, **sections}
    return make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())


def test_a_name_of_its_own_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    said = r"^PrefillWorker\.served_model_name: PrefillWorker would serve 'b' and DecodeWorker 'a'"
    with pytest.raises(ConfigError, match=said):
        plan(tiny_llama, PrefillWorker={"served_model_name": "b"}, DecodeWorker={"served_model_name": "a"})
    other = Path(shutil.copytree(tiny_llama, tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"would serve 'other' .*set Common\.served_model_name"):
        plan(tiny_llama, PrefillWorker={"model": str(other)})
    assert plan(tiny_llama, PrefillWorker={"model": str(other), "served_model_name": "x"}).model == "x"


def test_a_dtype_of_its_own_is_refused_also_where_one_of_both_is_auto(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtype_choice, "_cpu_has_bfloat16", lambda: True)
    said = r"^PrefillWorker\.dtype: PrefillWorker would compute in bfloat16 and DecodeWorker in float32"
    for decode in ("auto", "float32"):
        with pytest.raises(ConfigError, match=said):
            plan(tiny_llama, PrefillWorker={"dtype": "bfloat16"}, DecodeWorker={"dtype": decode})
    plan(tiny_llama, PrefillWorker={"dtype": "float32"})
    with pytest.raises(ConfigError, match=r"^PrefillWorker\.dtype: "):
        plan(tiny_llama, PrefillWorker={"dtype": "int8"})


def test_kv_of_a_dtype_of_its_own_is_refused(tiny_llama: Path) -> None:
    said = r"^PrefillWorker\.kv_dtype: PrefillWorker would keep KV as auto and DecodeWorker as fp8, .*set Common\."
    with pytest.raises(ConfigError, match=said):
        plan(tiny_llama, DecodeWorker={"kv_dtype": "fp8"})
    plan(tiny_llama, Common={"model": str(tiny_llama), "kv_dtype": "fp8"})
    plan(tiny_llama, DecodeWorker={"kv_dtype": "auto"})


def test_adapters_of_its_own_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "adapter", tiny_llama)
    one, two = f"poet={path}", f"poet={path}, coder={path}"
    with pytest.raises(
        ConfigError,
        match=r"^PrefillWorker\.lora_modules: PrefillWorker would have adapters coder, poet and DecodeWorker adapters "
        r"poet, .*set Common\.lora_modules",
    ):
        plan(tiny_llama, PrefillWorker={"lora_modules": two}, DecodeWorker={"lora_modules": [one]})
    with pytest.raises(ConfigError, match=r"would have adapters poet and DecodeWorker no adapters"):
        plan(tiny_llama, PrefillWorker={"lora_modules": one})
    plan(
        tiny_llama, PrefillWorker={"lora_modules": [f"coder={path}", one]}, DecodeWorker={"lora_modules": two}
    )
