from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from wavepp_worker.model.cpu import native_library
from wavepp_worker.model.stage import StageModel
from wavepp_worker.model.stage_loader import load_stage

from tests.support.reference import Reference
from tests.support.tested_device import TESTED_DEVICE, in_step


@pytest.fixture(scope="session")
def stages() -> Callable[..., list[StageModel]]:
    """``stages(directory, ends, dtype=float32, by_torch=False)``: the stages that end before those layers.

    ``by_torch``: as where this project's own kernels are not built, or the CPU cannot run them.
    """
    made: dict[tuple[Path, range, torch.dtype, bool], StageModel] = {}

    def load(
        directory: Path, ends: tuple[int, ...], dtype: torch.dtype = torch.float32, by_torch: bool = False
    ) -> list[StageModel]:
        ranges = [range(a, b) for a, b in zip((0, *ends[:-1]), ends, strict=True)]
        with pytest.MonkeyPatch.context() as patch:
            if by_torch:
                patch.setattr(native_library, "library", lambda: None)
            for layers in ranges:
                if (directory, layers, dtype, by_torch) not in made:
                    made[directory, layers, dtype, by_torch] = in_step(
                        load_stage(directory, layers, dtype, TESTED_DEVICE)
                    )
        return [made[directory, layers, dtype, by_torch] for layers in ranges]

    return load


@pytest.fixture(scope="session")
def plain() -> Callable[..., torch.Tensor]:
    """``plain(directory, tokens, dtype=float32)``: transformers' logits ``[tokens, vocabulary]``."""
    made: dict[tuple[Path, torch.dtype], Reference] = {}

    def logits(directory: Path, tokens: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if (directory, dtype) not in made:
            # Eager attention is the reference that every architecture defines itself by.
            made[directory, dtype] = Reference(directory, dtype, attention="eager")
        return made[directory, dtype].logits(tokens)

    return logits


@pytest.fixture
def copy(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy of ``tiny_llama`` to change."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "copy"))


@pytest.fixture
def gguf_file(tiny_llama: Path, tmp_path: Path) -> Path:
    """``tiny_llama`` as a GGUF file."""
    pytest.importorskip("gguf")
    from tests.support.tiny_gguf import write_gguf

    write_gguf(tiny_llama, tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept in the user's cache yet."""
    monkeypatch.setenv("WAVEPP_CACHE", str(tmp_path / "cache"))
