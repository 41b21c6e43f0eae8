"""Which planner of waves a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.mpu import Mpu
from wavepp_worker.runtime.planning.mpu_paper import PaperMpu
from wavepp_worker.runtime.planning.planner import Planner
from wavepp_worker.runtime.planning.throttle import ThrottlePlanner
from wavepp_worker.runtime.planning.two_budget import TwoBudgetMpu
from wavepp_worker.runtime.planning.wave_cost import WaveCost


class WaveSettings(Protocol):
    """What a planner is made of; fields of ``EngineConfig`` and of ``RankConfig``."""

    @property
    def planner(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def min_num_batched_tokens(self) -> int | None: ...
    @property
    def wave_cost(self) -> tuple[float, float, float] | None: ...


@dataclass(frozen=True)
class _Kind:
    """A planner that can be asked for.

    Attributes:
        make: of a pipeline of so many ranks.
        uses: settings that only some planners use, and this one does.
    """

    make: Callable[[WaveSettings, int], Planner]
    uses: frozenset[str] = frozenset()


def make_planner(config: WaveSettings, stages: int) -> Planner:
    """Rank 0's planner, for a pipeline of ``stages`` ranks.

    Raises:
        ConfigError: ``max_num_batched_tokens``, ``min_num_batched_tokens`` or ``wave_cost`` does not suit it, or is of
            other planners.
    """
    kind = _KINDS[config.planner]
    for name in sorted(_LEAST | _COST):
        if getattr(config, name) is not None and name not in kind.uses:
            users = " or ".join(other for other, each in _KINDS.items() if name in each.uses)
            raise ConfigError(
                f"{name}: planner={config.planner} does not use it; leave it out, or set planner to {users}"
            )
    return kind.make(config, stages)


def _greedy(config: WaveSettings, stages: int) -> Planner:
    del stages
    return GreedyPlanner(config.max_num_batched_tokens)


def _throttle(config: WaveSettings, stages: int) -> Planner:
    return ThrottlePlanner(
        waves=2 * stages,
        max_num_batched_tokens=config.max_num_batched_tokens,
        min_num_batched_tokens=_least(config, divisor=2),
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
    )


def _two_budget(config: WaveSettings, stages: int) -> Planner:
    return TwoBudgetMpu(
        stages=stages,
        max_num_batched_tokens=config.max_num_batched_tokens,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
    )


def _mpu_paper(config: WaveSettings, stages: int) -> Planner:
    return PaperMpu(
        P=stages,
        M=config.max_num_batched_tokens,
        b_min=_least(config, divisor=2),
        B=config.block_size,
        max_num_seqs=config.max_num_seqs,
    )


def _mpu(config: WaveSettings, stages: int) -> Planner:
    most, block_size = config.max_num_batched_tokens, config.block_size
    return Mpu(
        stages=stages,
        # Chunks end where blocks do, so tokens beyond the last whole block of a wave would never be used.
        max_num_batched_tokens=most // block_size * block_size or most,
        min_num_batched_tokens=_least(config, divisor=32),
        block_size=block_size,
        cost=None if config.wave_cost is None else WaveCost(*config.wave_cost),
        max_num_seqs=config.max_num_seqs,
    )


def _least(config: WaveSettings, divisor: int) -> int:
    """``min_num_batched_tokens``, or by default the most by ``divisor``, in whole blocks."""
    whole = config.max_num_batched_tokens // divisor // config.block_size * config.block_size
    return config.min_num_batched_tokens or max(config.block_size, whole)


_LEAST, _COST = frozenset({"min_num_batched_tokens"}), frozenset({"wave_cost"})
_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "greedy": _Kind(_greedy),
        "throttle": _Kind(_throttle, _LEAST),
        "two-budget": _Kind(_two_budget),
        "mpu-paper": _Kind(_mpu_paper, _LEAST),
        "mpu": _Kind(_mpu, _LEAST | _COST),
    }
)
"""Planners by their names."""
