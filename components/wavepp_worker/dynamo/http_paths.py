"""Variables that move paths of Dynamo's HTTP servers to where nobody here looks, or none can be served. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from wavepp_worker.errors import ConfigError

_FIXED = {
    "DYN_HTTP_SVC_CHAT_PATH": "/v1/chat/completions",
    "DYN_HTTP_SVC_CMP_PATH": "/v1/completions",
    "DYN_HTTP_SVC_RESPONSES_PATH": "/v1/responses",
    "DYN_HTTP_SVC_MODELS_PATH": "/v1/models",
    "DYN_HTTP_SVC_HEALTH_PATH": "/health",
    "DYN_HTTP_SVC_LIVE_PATH": "/live",
    "DYN_HTTP_SVC_METRICS_PATH": "/metrics",
}
"""Of a frontend: where the proxy looks at requests and answers itself, and the launcher asks."""
_BEGIN, _END = "DYN_HTTP_SVC_", "_PATH"
_SYSTEM = {"DYN_SYSTEM_HEALTH_PATH": "/health", "DYN_SYSTEM_LIVE_PATH": "/live"}
"""Of a worker."""


def check_frontend_paths(environment: Mapping[str, str]) -> None:
    """Refuse paths that the proxy before a frontend would not follow, and those that Dynamo could not serve.

    Raises:
        ConfigError: names the variable.
    """
    for name, value in sorted(environment.items()):
        if name in _FIXED:
            if value != _FIXED[name]:
                raise ConfigError(
                    f"{name}: {value!r} is not followed by the proxy before Dynamo's frontend, which checks and "
                    f"answers at {_FIXED[name]}; leave it out, and have a gateway rewrite paths"
                )
        elif name.startswith(_BEGIN) and name.endswith(_END):
            # Dynamo takes an empty one as it is.
            _check_path(name, value)
            if (owner := next((key for key, path in _FIXED.items() if path == value), None)) is not None:
                raise ConfigError(f"{name}: {value} is the path that {owner} is about; give another")


def check_worker_paths(environment: Mapping[str, str]) -> None:
    """Refuse paths of a worker's health that Dynamo could not serve; empty ones count as not set.

    Raises:
        ConfigError: names the variable.
    """
    paths = {name: environment.get(name) or usual for name, usual in _SYSTEM.items()}
    for name, value in paths.items():
        _check_path(name, value)
    if len(set(paths.values())) < len(paths):
        raise ConfigError(f"{' and '.join(paths)} are both {next(iter(paths.values()))}; give two paths")


def _check_path(name: str, value: str) -> None:
    if not value.startswith("/"):
        raise ConfigError(
            f"{name}: {value!r} is no path; give one that begins with /, or leave the variable out"
        )
