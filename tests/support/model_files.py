"""Changing the files of a model directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any


def edit_json(file: Path, **changes: Any) -> None:
    values = json.loads(file.read_text())
    values.update(changes)
    file.write_text(json.dumps(values))


def without_layer_types(model: Path, to: Path) -> Path:
    """A copy of a model of which some layers slide, as older files have it, which do not say so."""
    copy = Path(shutil.copytree(model, to))
    said = json.loads((copy / "config.json").read_text())
    assert "sliding_attention" in said.pop("layer_types")
    (copy / "config.json").write_text(json.dumps(said))
    return copy
