"""What of the processes' lines the user wants to see. Pure."""

from __future__ import annotations

import json
import re
import uuid

PROBE = str(uuid.uuid4())[:24]
"""What the ids of the launcher's own requests begin with; their lines are nobody's business."""

_TEXT = re.compile(r"\d{4}-\d\d-\d\dT\S+Z +(?P<level>TRACE|DEBUG|INFO|WARN|ERROR) (?P<rest>.*)")
_NIXL = re.compile(r"\d{4}-\d\d-\d\d [\d:]+ NIXL +(?P<level>\w+) ")
_NATS = re.compile(r"\[\d+\] \d{4}/\d\d/\d\d [\d:.]+ \[(?P<level>\w+)\] ")
_DYNAMOS = re.compile(r"(?:^|[ :])(?:dynamo_\w+|mm_routing)(?:::\w+)*: ")


def is_probe(line: str) -> bool:
    """Whether a process tells of a request of the launcher's own."""
    return PROBE in line


def is_small_talk(line: str) -> bool:
    """Whether a line of a process that comes up or leaves says nothing to its user.

    Those are what is no warning, and all that Dynamo itself says: its parts come and go in no order, and warn of that.
    """
    if line.startswith("{"):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return False
        level, target = str(entry.get("level", "")), str(entry.get("target", ""))
        return level in ("TRACE", "DEBUG", "INFO") or f"{target}: ".startswith(("dynamo_", "mm_routing"))
    if (nixl := _NIXL.match(line)) is not None:
        return nixl["level"] == "INFO"
    if (nats := _NATS.match(line)) is not None:
        return nats["level"] in ("INF", "WRN")
    found = _TEXT.match(line)
    if found is None:
        return False
    return found["level"] in ("TRACE", "DEBUG", "INFO") or _DYNAMOS.search(found["rest"][:300]) is not None
