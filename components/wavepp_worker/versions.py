"""What ``--version`` prints."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import typer

PACKAGES = ("wavepp-worker", "ai-dynamo", "torch", "transformers", "nixl")


def versions() -> str:
    """Each package on a line of its own with its version; those that are not installed are left out."""
    return "\n".join(f"{name} {found}" for name in PACKAGES if (found := _version(name)))


def print_versions(wanted: bool) -> None:
    """For an eager option of typer: print and leave.

    Raises:
        Exit: ``wanted``.
    """
    if wanted:
        typer.echo(versions())
        raise typer.Exit()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
