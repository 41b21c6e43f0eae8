"""Whether a pipeline can run a model's architecture, asked by who must not load tensor libraries."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.timed_model import is_timed
from wavepp_worker.model.user_cache import cache_root

_REFUSED = 2
_LONGEST_SECONDS = 120.0


def check_architecture(model_dir: Path) -> None:
    """Refuse what a rank would refuse when it reads the configuration, in the same words.

    A process of its own imports transformers and looks, which takes seconds. That a configuration is fine is
    remembered in the user's cache directory, so this happens once for each.

    Args:
        model_dir: a Hugging Face directory, or a timed model's.

    Raises:
        ConfigError: the architecture is not supported; begins with ``model``.
    """
    if is_timed(model_dir):
        return
    known = cache_root() / "architectures" / _key(model_dir)
    if known.exists():
        return
    command = [sys.executable, "-m", __name__, str(model_dir)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        # The workers say what is wrong, if anything is.
        return
    if done.returncode == _REFUSED:
        raise ConfigError(done.stdout.strip())
    if done.returncode == 0:
        with contextlib.suppress(OSError):
            known.parent.mkdir(parents=True, exist_ok=True)
            known.touch()


def _key(model_dir: Path) -> str:
    """What the verdict depends on: the configuration, transformers, and our rules."""
    names = ("architecture.py", "layer_cache.py", "quantisation.py", "recurrent_mixer.py")
    rules = [Path(__file__).with_name(name).read_bytes() for name in names]
    parts = ((model_dir / "config.json").read_bytes(), version("transformers").encode(), *rules)
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


def main() -> None:
    """Leave with 2 and a sentence if the model in ``argv[1]`` cannot be run."""
    from wavepp_worker.model.architecture import model_caches, outline, read_config

    try:
        config = read_config(Path(sys.argv[1]))
        outline(config)
        model_caches(config)
    except ConfigError as error:
        print(error)
        raise SystemExit(_REFUSED) from error


if __name__ == "__main__":
    main()
