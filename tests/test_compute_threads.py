from __future__ import annotations

from wavepp_worker.compute_threads import SPINS, with_short_spins


def test_threads_spin_for_a_short_time_unless_the_user_says_how_they_wait() -> None:
    own = {"OMP_WAIT_POLICY": "ACTIVE", "KMP_BLOCKTIME": "1"}
    assert with_short_spins({"A": "1"}) == {"A": "1", "GOMP_SPINCOUNT": SPINS, **own}
    assert with_short_spins({"GOMP_SPINCOUNT": "7"}) == {"GOMP_SPINCOUNT": "7", **own}
    assert with_short_spins({"OMP_WAIT_POLICY": "active"}) == {"OMP_WAIT_POLICY": "active"}
