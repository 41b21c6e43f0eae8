"""Dividing a model's layers over pipeline stages."""

from __future__ import annotations

from itertools import accumulate
from typing import Protocol

from wavepp_worker.errors import ConfigError


class Costs(Protocol):
    """A model, as far as its layers are divided: see ``ModelInfo``."""

    @property
    def num_layers(self) -> int: ...

    @property
    def layer_costs(self) -> tuple[float, ...]: ...

    @property
    def embedding_cost(self) -> float: ...

    @property
    def head_cost(self) -> float: ...


def partition_layers(info: Costs, pp: int, partition: tuple[int, ...] | None) -> tuple[range, ...]:
    """The layers of each stage: contiguous, in order, at least one each.

    Args:
        pp: number of stages.
        partition: layers per stage, or None to make the slowest stage as fast as possible (the embedding
            counts on the first stage, the head on the last) and, among such divisions, the stages most alike.

    Raises:
        ConfigError: ``pp`` or ``partition`` (named in the message) does not fit the model.
    """
    check_partition(info.num_layers, pp, partition)
    sizes = partition or _balance(info, pp)
    ends = list(accumulate(sizes))
    return tuple(range(end - size, end) for end, size in zip(ends, sizes, strict=True))


def check_partition(num_layers: int, pp: int, partition: tuple[int, ...] | None) -> None:
    """Refuse what does not divide a model of so many layers.

    Raises:
        ConfigError: names ``pp`` or ``partition``.
    """
    if not 1 <= pp <= num_layers:
        raise ConfigError(
            f"pp: {pp} stages cannot share {num_layers} layers; use a number from 1 to {num_layers}"
        )
    if partition is None:
        return
    given = ",".join(map(str, partition))
    if len(partition) != pp:
        raise ConfigError(f"partition: {given} names {len(partition)} stages but pp is {pp}; make them agree")
    if min(partition) < 1:
        raise ConfigError(f"partition: {given} leaves a stage without layers; give every stage at least one")
    if sum(partition) != num_layers:
        raise ConfigError(
            f"partition: {given} adds up to {sum(partition)} layers but the model has {num_layers}; "
            "make it add up"
        )


def _balance(info: Costs, pp: int) -> tuple[int, ...]:
    before = [0.0, *accumulate(info.layer_costs)]

    def cost(stage: int, first: int, end: int) -> float:
        total = before[end] - before[first]
        total += info.embedding_cost if stage == 0 else 0.0
        return total + (info.head_cost if stage == pp - 1 else 0.0)

    def best(limit: float, squared: bool) -> tuple[float, tuple[int, ...]]:
        """Smallest maximum (or sum of squares) over divisions whose stages cost at most ``limit``."""
        # of[end]: the best value and the stage sizes of the first stages, which hold the layers before `end`
        of: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        for stage in range(pp):
            left = pp - stage - 1
            found: dict[int, tuple[float, tuple[int, ...]]] = {}
            for first, (value, sizes) in of.items():
                for end in range(first + 1, info.num_layers - left + 1):
                    here = cost(stage, first, end)
                    if here > limit:
                        break
                    candidate = value + here * here if squared else max(value, here)
                    if end not in found or candidate < found[end][0]:
                        found[end] = (candidate, (*sizes, end - first))
            of = found
        return of[info.num_layers]

    slowest, _ = best(float("inf"), squared=False)
    return best(slowest * (1 + 1e-9), squared=True)[1]
