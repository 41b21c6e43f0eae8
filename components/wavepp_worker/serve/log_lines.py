"""What of the processes' lines the user wants to see. Pure."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any, cast

PROBE = str(uuid.uuid4())[:24]
"""What the ids of the launcher's own requests begin with; their lines are nobody's business."""
_ANSWER = "http response sent"

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""What Dynamo colours its lines with, where somebody wants it to."""
_UNNAMED = re.compile(rf" INFO dynamo_llm::http::service::service_v2: {_ANSWER} status=2\d\d latency_ms=\d+$")
_TEXT = re.compile(r"\d{4}-\d\d-\d\dT\S+ +(?P<level>TRACE|DEBUG|INFO|WARN|ERROR) (?P<rest>.*)")
_NIXL = re.compile(r"\d{4}-\d\d-\d\d [\d:]+ NIXL +(?P<level>\w+) ")
_NATS = re.compile(r"\[\d+\] \d{4}/\d\d/\d\d [\d:.]+ \[(?P<level>\w+)\] ")
_DYNAMOS = re.compile(r"(?:^|[ :])(?:dynamo_\w+|mm_routing)(?:::\w+)*: ")


def is_probe(line: str) -> bool:
    """Whether a process tells of a request of the launcher's own.

    Of those that ask a frontend for a sign of life or its models, whose ever, Dynamo tells neither id nor path.
    """
    line = _COLOURS.sub("", line)
    if PROBE in line or _UNNAMED.search(line) is not None:
        return True
    if not line.startswith("{") or _ANSWER not in line:
        return False
    entry = _object(line)
    well = entry.get("level") == "INFO" and str(entry.get("status", "2")).startswith("2")
    return entry.get("message") == _ANSWER and well and "uri" not in entry


def is_small_talk(line: str) -> bool:
    """Whether a line of a process that comes up or leaves says nothing to its user.

    Those are what is no warning, and all that Dynamo itself says: its parts come and go in no order, and warn of that.
    """
    line = _COLOURS.sub("", line)
    if line.startswith("{"):
        entry = _object(line)
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


def _object(line: str) -> dict[str, Any]:
    """What a line that begins like a JSON object holds; nothing if it is none."""
    try:
        return cast("dict[str, Any]", json.loads(line))
    except (ValueError, RecursionError):
        return {}
