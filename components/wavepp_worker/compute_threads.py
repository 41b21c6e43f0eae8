"""How threads that compute together wait for each other, as the OpenMP library of torch finds in its environment."""

from __future__ import annotations

from collections.abc import Mapping

SPINS = "3000"
"""Rounds, some 10 µs, that a thread looks for work before it sleeps. By default it looks for a millisecond at a time:
where others want the same cores, those that wait keep those from running for whom they wait. Measured with 2 threads on
2 cores: 3 to 10 % slower than the default while nobody else computes, and 6 to 15 times as fast while others do."""


_WHEN_OVERSUBSCRIBED = {"OMP_WAIT_POLICY": "ACTIVE", "KMP_BLOCKTIME": "1"}
"""A process in which several threads compute, if only one at a time, as where one loads the model and another runs it,
has more of the library's threads than two cores. GNU's OpenMP then looks no more than 100 rounds for work, less than
some steps of a layer take, or 1,000 where it is told to be active; how long it looks otherwise, ``SPINS`` says. With
2 threads on 2 cores a decode step takes 12 ms so, in place of 20. Intel's library, which others' builds of torch have,
would look for ever, but for ``KMP_BLOCKTIME``, in milliseconds."""


def with_short_spins(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that computes; what it says itself of waiting stays."""
    if "OMP_WAIT_POLICY" in environment:
        return dict(environment)
    return {"GOMP_SPINCOUNT": SPINS, **_WHEN_OVERSUBSCRIBED, **environment}
