"""The lines by which a worker says that it takes no new requests for a while: the launcher reads them."""

from __future__ import annotations

PAUSED = "PAUSED: "
"""What the line begins with by which a worker says that it is well, but that no frontend finds it."""
RESUMED = "RESUMED: "
"""What the line begins with by which it says that they do again."""
