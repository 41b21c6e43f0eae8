"""Where files of this user are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_root() -> Path:
    """``$WAVEPP_CACHE``, else the platform's user cache directory for ``wavepp``."""
    override = os.environ.get("WAVEPP_CACHE")
    return Path(override).expanduser() if override else platformdirs.user_cache_path("wavepp")
