"""Whether a pipeline can run a model's architecture, asked by who must not load tensor libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.architecture_facts import architecture_facts, remembered
from wavepp_worker.model.timed.timed_model import is_timed

_REFUSED = 2
_LONGEST_SECONDS = 120.0


def check_architecture(model_dir: Path) -> None:
    """Refuse what a rank would refuse when it reads the configuration, in the same words.

    A process of its own imports transformers and looks, which takes seconds, but not if the architecture's facts are
    remembered.

    Args:
        model_dir: a Hugging Face directory, or a timed model's.

    Raises:
        ConfigError: the architecture is not supported; begins with ``model``.
    """
    if is_timed(model_dir) or remembered(model_dir) is not None:
        return
    command = [sys.executable, "-m", __name__, str(model_dir)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        # The workers say what is wrong, if anything is.
        return
    if done.returncode == _REFUSED:
        raise ConfigError(done.stdout.strip())


def main() -> None:
    """Leave with 2 and a sentence if the model in ``argv[1]`` cannot be run."""
    try:
        architecture_facts(Path(sys.argv[1]))
    except ConfigError as error:
        print(error)
        raise SystemExit(_REFUSED) from error


if __name__ == "__main__":
    main()
