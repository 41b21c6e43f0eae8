"""The plans that FlashInfer's kernels want before a wave, on their way to the device while others are launched."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import torch

from wavepp_worker.model.device.cuda_device import await_event, moment

AHEAD = 4
"""Plans that may be on their way to the device at once: of more waves than are launched ahead."""
PLAN_SECONDS = 600.0
"""How long the oldest of them may take to arrive there: more than a wave may take."""


class PlannedWrappers:
    """Wrappers of kernels by the kind of layers that they planned for.

    A plan holds for all layers of a kind. It goes to the device from page-locked memory of its wrapper, into which the
    wrapper's next plan is written: so wrappers take turns, and none plans before its last plan is known to have
    arrived.
    """

    def __init__(self, device: torch.device, make_wrapper: Callable[[], Any]) -> None:
        self._device = device
        self._make_wrapper = make_wrapper
        self._planned: dict[Hashable, deque[tuple[Any, torch.cuda.Event]]] = {}

    def plan(self, kind: Hashable, plan: Callable[[Any], object]) -> Any:
        """A wrapper of the kind whose plan was made by ``plan(wrapper)`` now.

        Raises:
            StepTimeout: plans do not arrive on the device.
        """
        planned = self._planned.setdefault(kind, deque())
        if len(planned) < AHEAD:
            wrapper = self._make_wrapper()
        else:
            wrapper, arrived = planned.popleft()
            await_event(arrived, PLAN_SECONDS, "the GPU has not taken the plan of a wave")
        plan(wrapper)
        planned.append((wrapper, moment(torch.cuda.current_stream(self._device))))
        return wrapper

    def clear(self) -> None:
        """Let go of all wrappers, which hold memory; what they planned must be over."""
        self._planned.clear()
