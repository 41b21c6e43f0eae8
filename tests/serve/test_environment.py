"""What processes find in their environment."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import resource
from wavepp_worker.serve.environment import allow_descriptors

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
allow_descriptors()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
"""


def test_what_is_started_may_open_as_many_files_as_the_user_may() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
