"""A rank's log lines look like those of Dynamo's logger, beside which they stand: text, or JSON where that is."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from wavepp_worker.log_form import line_time, lines_are_json

_LEVELS = {"WARNING": "WARN", "CRITICAL": "ERROR"}


class LogLines(logging.Formatter):
    """Time in UTC, level, who says it, and what; a traceback follows, or is in the JSON object."""

    def __init__(self, rank: int, as_json: bool) -> None:
        super().__init__()
        self._rank = rank
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        time = line_time(record.created)
        level = _LEVELS.get(record.levelname, record.levelname)
        text = record.getMessage()
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        if not self._as_json:
            return f"{time} {level:>5} {record.name}: {text} rank={self._rank}{trace}"
        line = {
            "time": time,
            "level": level,
            "target": record.name,
            "message": text + trace,
            "rank": self._rank,
        }
        return json.dumps(line, ensure_ascii=False)


def log_as_lines(rank: int, environment: Mapping[str, str]) -> None:
    """Have this process's warnings and errors written to standard error so."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines(rank, lines_are_json(environment)))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
