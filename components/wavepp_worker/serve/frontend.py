"""The command line of ``python -m dynamo.frontend``, checked without starting it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from wavepp_worker.errors import ConfigError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(message)


class FrontendArgs:
    """What Dynamo's frontend accepts."""

    @classmethod
    def parse(cls, argv: Sequence[str]) -> None:
        """Check a command line.

        Raises:
            ConfigError: the frontend would ignore or refuse a flag; the message names it.
        """
        from dynamo.frontend.frontend_args import FrontendArgGroup, FrontendConfig

        parser = _Parser(prog="python -m dynamo.frontend", allow_abbrev=False)
        FrontendArgGroup().add_arguments(parser)
        try:
            FrontendConfig.from_cli_args(parser.parse_args(argv)).validate()
        except ValueError as error:
            raise ConfigError(str(error)) from error
