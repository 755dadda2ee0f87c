"""Gradient descent whose nodes gossip in every third round alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dpmesh as dm
from dpmesh.algorithms import Message
from dpmesh.algorithms.gradient_descent import GradientDescentState
from dpmesh.algorithms.gradients import gradient_step
from dpmesh.privacy import Sensitive
from dpmesh.schedules import at


@dataclass(frozen=True, kw_only=True)
class EveryThird(dm.GradientDescent):
    """Gradient descent whose nodes step from their own releases in the rounds between."""

    def round(self, state: Any, t: int, problem: Any, key: Any) -> Any:
        point = yield Message(state.x, self.release_of(t), is_sent=t % 3 == 0)
        step_size = at(self.step_size, t + 1)
        records = self.records_of(t, problem)
        x = gradient_step(problem, point, step_size, records, clipping_norm=self.clipping_norm)
        return GradientDescentState(Sensitive(x))
