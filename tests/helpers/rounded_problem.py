"""Neighbouring problems in float32 whose records round a model of 1 as far apart as they can."""

from __future__ import annotations

import numpy as np

import dpmesh as dm
from dpmesh.data import Dataset

CLIPPED = 128 / 20_000
"""So that a model of 1 is 20,000 times as long as one of 256 records moves it."""


class FromOne(dm.LinearProblem):
    """Starts at 1."""

    def initial(self, key):
        return np.ones((1, 1), np.float32)


def chosen_problems(kind=dm.LinearProblem, *, rounds=1, label=1.0, regularization=0.0):
    """The first record moves a model from 1 down or up, where numbers are twice as far apart.

    The 255 others move it up by half of that distance, and a little more, each. With a label of -1
    all that is so of the gradient, which with a regularization of 1 is about 1, too.
    """
    x = np.full((256 * rounds, 1), 256 * (2.0**-24 + 2.0**-29), np.float32)
    for first in (-CLIPPED, CLIPPED):
        x[0] = first
        data = Dataset(x.copy(), np.full(len(x), label), "chosen")
        parts = [np.arange(len(x))]
        yield kind(data, parts, "hinge", regularization=regularization)
