"""A worker in any role: ``python -m wavepp_worker --disaggregation-mode {prefill,decode,agg}``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from wavepp_worker.compute_threads import with_short_spins
from wavepp_worker.dynamo.flags import Parser, add_fields, build, take
from wavepp_worker.dynamo.worker_settings import Role, WorkerSettings
from wavepp_worker.errors import ConfigError


def role_of(argv: Sequence[str]) -> Role:
    """The role that a command line, or else the environment, asks for; ``agg`` if neither does.

    Raises:
        ConfigError: there is no such role, or it lacks its value; names the flag or the variable.
    """
    parser = Parser(prog="python -m wavepp_worker", add_help=False, allow_abbrev=False)
    add_fields(parser, WorkerSettings, "Worker")
    given, _ = parser.parse_known_args(argv)
    taken = take(vars(given), WorkerSettings)
    mode = taken.get("disaggregation_mode")
    return build(WorkerSettings, {"disaggregation_mode": mode}, taken.spell).disaggregation_mode or "agg"


def main() -> None:
    try:
        role = role_of(sys.argv[1:])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    # Before torch is loaded, whose threads read it once.
    os.environ.update(with_short_spins(os.environ))
    try:
        worker = importlib.import_module(f"wavepp_worker.dynamo.{role}")
    except KeyboardInterrupt:
        # Told to stop, as it is later; nothing is there yet that would have to end.
        raise SystemExit(0) from None
    worker.main()


if __name__ == "__main__":
    main()
