"""What Dynamo's planner has decided, and the steps from the replicas that there are to those. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec


class Decision(msgspec.Struct, frozen=True):
    """One decision of the planner.

    Attributes:
        number: its id; the planner is told with it that the decision is carried out.
        workers: how many there shall be, by role; roles that it says nothing of are missing.
    """

    number: int
    workers: dict[str, int]


class Bounds(msgspec.Struct, frozen=True):
    """How many replicas of a service there may be."""

    fewest: int
    most: int


class Steps(msgspec.Struct, frozen=True):
    """What is to do, as roles and numbers of replicas.

    Attributes:
        start: in this order.
        stop: likewise; always those with the highest numbers.
    """

    start: tuple[tuple[str, int], ...] = ()
    stop: tuple[tuple[str, int], ...] = ()


def within_bounds(
    decision: Decision, bounds: Mapping[str, Bounds], names: Mapping[str, str]
) -> tuple[dict[str, int], list[str]]:
    """How many replicas there shall be, by role; and a sentence for each number that is not the one decided.

    Args:
        bounds: by role; what the decision says of other roles is others' to do.
        names: of the services, by role.
    """
    wanted, sentences = {}, []
    for role, (count, limits) in {
        role: (decision.workers[role], limits) for role, limits in bounds.items() if role in decision.workers
    }.items():
        wanted[role] = min(max(count, limits.fewest), limits.most)
        if wanted[role] != count:
            key, limit = (
                ("min_workers", limits.fewest) if count < limits.fewest else ("max_workers", limits.most)
            )
            sentences.append(
                f"{count} of {names[role]} are asked for, and {names[role]}.ServiceArgs.{key} is {limit}: there are "
                f"{wanted[role]}; give the planner the same bound, which waits for what it has asked for"
            )
    return wanted, sentences


def steps_to(wanted: Mapping[str, int], present: Mapping[str, Collection[int]]) -> Steps:
    """What leads from the replicas that there are to as many as are wanted.

    Args:
        wanted: how many, by role; roles without a number stay as they are.
        present: the numbers of those that there are, by role.
    """
    start: list[tuple[str, int]] = []
    stop: list[tuple[str, int]] = []
    for role, count in wanted.items():
        there = set(present.get(role, ()))
        start += [(role, number) for number in range(count) if number not in there]
        stop += [(role, number) for number in sorted(there, reverse=True) if number >= count]
    return Steps(tuple(start), tuple(stop))
