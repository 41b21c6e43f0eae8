"""What is asked of Dynamo's version, where versions differ."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def dynamo_is_at_least(major: int, minor: int) -> bool:
    """Whether the Dynamo that is installed is of this version or a later one; False if none is."""
    try:
        found = version("ai-dynamo-runtime")
    except PackageNotFoundError:
        return False
    return tuple(map(int, found.split(".")[:2])) >= (major, minor)
