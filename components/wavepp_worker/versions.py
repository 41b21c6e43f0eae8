"""What ``--version`` prints."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import typer

from wavepp_worker.standard_output import printing

BESIDE = ("ai-dynamo", "torch", "transformers", "nixl")
"""Packages on whose versions it depends what this one does."""


def versions() -> str:
    """This package's version, and in brackets those of the packages beside it that are installed."""
    beside = ", ".join(f"{name} {found}" for name in BESIDE if (found := _version(name)))
    return f"wavepp-worker {_version('wavepp-worker') or 'unknown'} ({beside})"


def print_versions(wanted: bool) -> None:
    """For an eager option of typer: print and leave.

    Raises:
        Exit: ``wanted``.
    """
    if wanted:
        with printing():
            typer.echo(versions())
        raise typer.Exit()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
