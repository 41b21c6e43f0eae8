"""Models by their ids, without a network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dynamo import llm
from wavepp_worker.dynamo.args import AggArgs, PrefillArgs
from wavepp_worker.dynamo.model_fetch import fetched_model, is_model_id, model_name
from wavepp_worker.errors import ConfigError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tiny_llama: Path) -> list[str]:
    """The ids that a hub was asked for which has org/tiny alone."""
    ids: list[str] = []

    async def fetch_model(name: str, ignore_weights: bool = False) -> str:
        ids.append(name)
        await asyncio.sleep(0)
        if name != "org/tiny":
            raise Exception(f"Failed to fetch model {name!r}:\n  no such model")
        return str(tiny_llama)

    monkeypatch.setattr(llm, "fetch_model", fetch_model)
    return ids


def test_what_is_there_is_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_model_id(Path("org/tiny-1.0"))
    (tmp_path / "org/tiny-1.0").mkdir(parents=True)
    for path in ("org/tiny-1.0", "/org/tiny", "tiny", "a/b/c", "../tiny", "./tiny"):
        assert not is_model_id(Path(path))
    assert (model_name(Path("x/y")), model_name(Path("/models/y"))) == ("x/y", "y")


def test_a_worker_fetches_its_model_and_serves_it_under_the_id(asked: list[str], tiny_llama: Path) -> None:
    async def inside_a_loop() -> PrefillArgs:
        return PrefillArgs.parse_or_exit(["--model-path", "org/tiny", "--kv-tokens", "8192"])

    args = asyncio.run(inside_a_loop())
    assert (args.engine.model, args.runtime.served_model_name, args.engine.kv_tokens) == (
        tiny_llama,
        "org/tiny",
        8192,
    )
    agg = AggArgs.parse_or_exit(["--model", "org/tiny", "--served-model-name", "t", "--kv-tokens", "8192"])
    assert (agg.engine.model, agg.decode.model, agg.runtime.served_model_name) == (
        tiny_llama,
        tiny_llama,
        "t",
    )
    PrefillArgs.parse_or_exit(["--model", str(tiny_llama), "--kv-tokens", "8192"])
    assert asked == ["org/tiny"] * 2


def test_what_cannot_be_fetched_is_one_sentence(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        PrefillArgs.parse_or_exit(["--model-path", "org/other"])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "error: --model-path: there is no directory org/other here, and org/other could not be fetched from Hugging "
        "Face (Failed to fetch model 'org/other': no such model); give a directory"
    )
    assert said.count("\n") == 1
    assert asked == ["org/other"]
    with pytest.raises(ConfigError, match=r"^model: there is no directory org/other here, and "):
        fetched_model(Path("org/other"))
