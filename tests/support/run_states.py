"""What a launcher says of its run, as commands read it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEFAULTS: dict[str, Any] = {"replica": 0, "kind": "worker", "pid": 7, "ready": True, "restarts": 0}


def write_state(directory: Path, processes: Sequence[dict[str, Any]], **values: Any) -> None:
    """As the launcher ``values`` belong to; each of ``processes`` is told as far as it is not as most are."""
    state = {
        "graph": "g",
        "pid": os.getpid(),
        "ready": True,
        "base_url": "http://127.0.0.1:8000",
        "model": "tiny",
        "processes": [{**DEFAULTS, **each} for each in processes],
    }
    (directory / "state.json").write_text(json.dumps({**state, **values}))
