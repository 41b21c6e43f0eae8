"""What the launchers of this user say of their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wavepp_worker.serve import guard
from wavepp_worker.serve.run_dir import STATE_FILE


def run_dirs() -> list[Path]:
    """The directories of all runs whose processes this user may look at."""
    return sorted({Path(directory) for _, directory in guard.processes()})


def read_state(run_dir: Path) -> dict[str, Any] | None:
    """What a launcher says of its run; None if there is none."""
    try:
        state = json.loads((run_dir / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and "processes" in state else None
