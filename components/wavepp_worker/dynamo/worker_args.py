"""What the command lines of all kinds of worker have in common, from parsing to what counts. Starts nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Self

from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.dynamo.handoff_host import HandoffHost
from wavepp_worker.dynamo.model_fetch import fetched_model
from wavepp_worker.dynamo.runtime_args import RuntimeArgs
from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import Settings
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.model.model_shape import ModelShape, check_served_model
from wavepp_worker.runtime.client.disk_room import DiskUse
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.serve.listen_addresses import check_listen_addresses, check_system_port
from wavepp_worker.server_reach import without_password
from wavepp_worker.setting_names import flag_of, keys_as_flags

_RUNTIMES = ("custom_jinja_template", "discovery_backend")
"""Keys of Dynamo's own group that sentences of ours name."""


@dataclass(frozen=True, kw_only=True)
class WorkerArgs:
    """What the three kinds of worker share in parsing.

    Attributes:
        runtime: what Dynamo itself is told.
        written: how settings were given that were, as which flag or in which variable.
    """

    runtime: RuntimeArgs
    written: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        """Every name that a setting of this worker may be given by, but for those of Dynamo's own group."""
        raise NotImplementedError

    def spell(self, key: str) -> str:
        """How a setting was written; as a flag, if it was not given."""
        return self.written.get(key, flag_of(key))

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None) -> Self:
        """Parse a command line; touches neither the model nor the network.

        Args:
            argv: flags, by default those of this process.

        Raises:
            ConfigError: an unknown flag or a bad value; the message names it.
        """
        raise NotImplementedError

    @property
    def model(self) -> Path:
        """The model directory, or its id on Hugging Face."""
        raise NotImplementedError

    def changed(self, **settings: Any) -> Self:
        """The same with some settings of every engine of the worker changed."""
        raise NotImplementedError

    def settled(self, shape: ModelShape) -> Self:
        """The same with its KV pools in tokens; asks the devices what they have left.

        Args:
            shape: of the model.

        Raises:
            ConfigError: what is asked for does not fit; the message names the flag.
        """
        raise NotImplementedError

    def host(self) -> HandoffHost:
        """Where the worker takes or hands over KV.

        Raises:
            ConfigError: others could not reach it there; the message names the flag.
        """
        raise NotImplementedError

    @staticmethod
    def fetch(model: Path) -> Path:
        """The directory of a model that may be given by its id on Hugging Face; takes as long as the download.

        Raises:
            ConfigError: it could not be fetched; names ``model``.
        """
        return fetched_model(model)

    def check(self, shape: ModelShape) -> None:
        """Refuse what the worker would refuse while it starts; reads no weights, and takes milliseconds.

        Args:
            shape: of the model.

        Raises:
            ConfigError: it cannot work; the message names the flag.
        """
        raise NotImplementedError

    def disk_use(self, shape: ModelShape, others: Sequence[DiskUse]) -> DiskUse | None:
        """What the worker's disk tier takes, if it has one.

        Args:
            shape: of the model.
            others: what other workers on this machine will take.

        Raises:
            ConfigError: there is no room for it beside the others; the message names the flag.
        """
        del shape, others
        return None

    def effective(self) -> dict[str, Any]:
        """Every setting as it counts, for ``--dump-config-to``: by engine, and Dynamo's own."""
        shown: dict[str, Any] = {}
        for name, part in ((each.name, getattr(self, each.name)) for each in dataclasses.fields(self)):
            if isinstance(part, Settings):
                shown[name] = part.model_dump(mode="json")
                if shown[name].get("nats_server"):
                    shown[name]["nats_server"] = without_password(shown[name]["nats_server"])
        own = {key: value for key, value in vars(self.runtime).items() if key != "options"}
        return {**shown, "runtime": {**vars(self.runtime.options), **own}}

    @classmethod
    def parse_or_exit(cls, argv: Sequence[str] | None = None) -> Self:
        """As ``parse`` and ``check``, but print the complaint and leave with code 2.

        Fetches the model if it is given by an id, and writes the configuration down if that is asked for.
        """
        from dynamo.common.config_dump import dump_config

        try:
            args = cls.parse(argv)
            check_listen_addresses(os.environ)
            check_system_port(os.environ)
            with as_flags(args.spell):
                directory = cls.fetch(args.model)
                args = args if directory == args.model else args.changed(model=directory)
                shape = check_served_model(args.model)
            args.check(shape)
            place = args.host()
            if place.note is not None:
                print(f"note: {place.note}", file=sys.stderr)
                args = args.changed(host=place.host)
            args = args.settled(shape)
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from error
        dump_config(args.runtime.options.dump_config_to, args.effective())
        return args


@contextlib.contextmanager
def as_flags(spell: Callable[[str], str]) -> Iterator[None]:
    """Complaints about keys become complaints about flags."""
    try:
        yield
    except ConfigError as error:
        models = (EngineConfig, DecodeConfig, IntakeConfig, RemotePrefillConfig)
        keys = {*_RUNTIMES, *(key for each in models for key in each.model_fields)}
        raise ConfigError(keys_as_flags(str(error), keys, spell)) from error
