from __future__ import annotations

import os
import subprocess
import sys

from wavepp_worker.compute_threads import SPINS, with_short_spins


def test_threads_spin_for_a_short_time_unless_the_user_says_how_they_wait() -> None:
    own = {"OMP_WAIT_POLICY": "ACTIVE", "KMP_BLOCKTIME": "1"}
    assert with_short_spins({"A": "1"}) == {"A": "1", "GOMP_SPINCOUNT": SPINS, **own}
    assert with_short_spins({"GOMP_SPINCOUNT": "7"}) == {"GOMP_SPINCOUNT": "7", **own}
    assert with_short_spins({"OMP_WAIT_POLICY": "active"}) == {"OMP_WAIT_POLICY": "active"}


def test_a_worker_that_is_started_alone_waits_as_those_of_a_graph() -> None:
    script = (
        "import importlib, os, sys, types\n"
        "import wavepp_worker.__main__ as worker\n"
        "def load(name):\n"
        "    assert 'torch' not in sys.modules, 'its threads have read their environment'\n"
        "    return types.SimpleNamespace(main=lambda: print(name, os.environ['GOMP_SPINCOUNT']))\n"
        "worker.importlib.import_module = load\n"
        "sys.argv = ['worker', '--disaggregation-mode', 'decode']\n"
        "worker.main()\n"
    )
    own = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run([sys.executable, "-c", script], env=own, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["wavepp_worker.dynamo.decode", SPINS], done.stderr
