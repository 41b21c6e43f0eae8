"""Changing the files of a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def edit_json(file: Path, **changes: Any) -> None:
    values = json.loads(file.read_text())
    values.update(changes)
    file.write_text(json.dumps(values))
