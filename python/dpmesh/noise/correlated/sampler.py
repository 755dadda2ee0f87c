"""The rows of correlated noise, drawn round by round from keyed streams.

A row is a function of the key, the release and the nodes alone. Its draw needs the rows of earlier
rounds, which are secret state, like the parameters: whoever has them can subtract noise. Drawing
from the same state again gives the same bits, and so does a state that was drawn again.

What is released once must never be computed again from other values: after a crash resend the
stored message. Two messages of one row with equal noise differ by the values, without noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._arrays import FloatArray, float_type, read_only
from dpmesh._validate import fail, instance, integer
from dpmesh.keys import Key, Purpose
from dpmesh.noise.correlated.joint import CorrelatedGaussian
from dpmesh.noise.correlated.lattice import noise_steps
from dpmesh.noise.correlated.secrets import Secrets
from dpmesh.noise.grid import add_on_grid, round_to_grid


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseState:
    """The secret state between two rows: never log or publish it.

    Parameters
    ----------
    row
        The next row, from 0.
    nodes
        The node of each row of the arrays, shape (rows,).
    dim
        Length of a message.
    dtype
        float32 or float64.
    earlier
        The noise of the rows before, newest first, as many as the bands need; each of shape
        (rows, dim), read-only.
    """

    row: int
    nodes: npt.NDArray[np.uint32]
    dim: int
    dtype: np.dtype[Any]
    earlier: tuple[FloatArray, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrelatedNoise:
    """Draws the rows of one joint release.

    Row t, from 0, takes the own noise of node u from the stream of (`purpose`, `first_round` + t,
    u), and a pair's secret from that of (`Purpose.PAIR`, `first_round` + t, number of the pair). No
    other release of the run may use these streams.

    Parameters
    ----------
    release
        The joint release.
    purpose
        Of the nodes' own streams.
    first_round
        The round of row 0; the package's round 0 sends x_0 without noise.

    Examples
    --------
    >>> import numpy as np
    >>> from dpmesh.noise import correlated
    >>> release = correlated.CorrelatedGaussian(
    ...     noise_to_sensitivity=4.0, factorization=correlated.from_matrix(np.eye(3))
    ... )
    >>> sampler = correlated.CorrelatedNoise(release=release)
    >>> type(sampler).__name__
    'CorrelatedNoise'
    """

    release: CorrelatedGaussian
    purpose: int = Purpose.NOISE
    first_round: int = 1

    def __post_init__(self) -> None:
        instance("release", self.release, "a CorrelatedGaussian", CorrelatedGaussian)
        integer("purpose", self.purpose, 1, 2**32)
        if self.purpose == Purpose.PAIR:
            fail("purpose", "another purpose than that of the pairs", "Purpose.PAIR")
        integer("first_round", self.first_round, 0, 2**32 - self.release.rounds)

    def start(
        self, nodes: npt.ArrayLike, dim: int, *, dtype: npt.DTypeLike = np.float64
    ) -> NoiseState:
        """Return the state before the first row.

        Parameters
        ----------
        nodes
            The nodes whose rows are drawn, distinct: all of them, or those of this process.
        dim
            Length of a message.
        dtype
            float32 or float64.

        Raises
        ------
        ValueError
            If the nodes are not distinct, or not nodes of the secrets.
        """
        ids = np.atleast_1d(np.asarray(nodes))
        if ids.dtype.kind not in "iu" or ids.ndim != 1 or len(np.unique(ids)) < len(ids):
            fail("nodes", "distinct integers, the nodes of the rows", nodes)
        first = self.release.secrets_of(0)
        below = 2**32 if first is None else first.nodes
        if ids.min() < 0 or ids.max() >= below:
            fail("nodes", f"integers from 0 to {below - 1}", nodes)
        return NoiseState(
            row=0,
            nodes=read_only(ids.astype(np.uint32)),
            dim=integer("dim", dim, 1),
            dtype=float_type(dtype),
        )

    def draw(
        self,
        key: Key,
        state: NoiseState,
        pair_key: Key | Mapping[int, Key] | None = None,
        secrets: Secrets | None = None,
    ) -> tuple[FloatArray, NoiseState]:
        """Return the noise of the next row, and the state after it; `state` stays as it is.

        Parameters
        ----------
        key
            The key of the run, for all nodes.
        state
            From `start` or `draw`.
        pair_key
            That of the secrets of pairs, the same for both ends, or that of each pair by its
            number; by default `key`.
        secrets
            Those of the row; by default as the release has them.

        Returns
        -------
        Noise of shape (rows, dim), read-only, to be added to the messages of that round.

        Raises
        ------
        ValueError
            If the release has no more rows: a longer run needs a C planned for it.
        """
        release, t = self.release, state.row
        self._check(key, t)
        secrets = secrets or release.secrets_of(t)
        stream_round = self.first_round + t
        factors = release.recursion[t]
        fresh = release.noise_to_sensitivity / float(factors[0])
        local_scale = 1.0 if secrets is None else secrets.own
        earlier = state.earlier
        noise = kernels.correlated_gaussian(
            (len(state.nodes), state.dim),
            fresh * local_scale,
            earlier,
            (-factors[1 : len(earlier) + 1] / factors[0]).tolist(),
            key.stream(self.purpose, stream_round),
            dtype=state.dtype,
            nodes=state.nodes,
        )
        if secrets is not None and len(secrets.pairs):
            numbers, ends = held_pairs(secrets, state.nodes)
            if isinstance(pair_key, Mapping):
                sources = [(pair_key[pair], [i]) for i, pair in enumerate(numbers.tolist())]
            else:
                sources = [(pair_key or key, [*range(len(numbers))])]
            for source, chosen in sources:
                stream = source.stream(Purpose.PAIR, stream_round)
                scale = fresh * secrets.shared
                kernels.add_pair_gaussian(noise, numbers[chosen], ends[chosen], scale, stream)
        noise = read_only(noise)
        memory = (noise, *earlier)[: len(factors) - 1]
        return noise, replace(state, row=t + 1, earlier=memory)

    def send(
        self,
        key: Key,
        state: NoiseState,
        values: FloatArray,
        *,
        factor: float = 1.0,
        pair_key: Key | None = None,
    ) -> tuple[FloatArray, NoiseState]:
        """Return the messages of the next row on the grid, and the state after it.

        Parameters
        ----------
        key, state
            As in `draw`; the state keeps what was added to the values of earlier rows.
        values
            What is released, shape (rows, dim), secret.
        factor
            By how much more noise is drawn, to hide what rounded the values before.
        pair_key
            As in `draw`.

        Returns
        -------
        Messages of the values' type, read-only.

        Raises
        ------
        ValueError
            As `draw`, or if the grid is too fine for the noise.
        """
        release, t = self.release, state.row
        self._check(key, t)
        grid = release.grid
        factors = release.recursion[t]
        stream_round = self.first_round + t
        assert grid is not None
        centre = factors[0] * np.asarray(values, dtype=np.float64)
        for weight, noise in zip(factors[1:], state.earlier, strict=False):
            centre -= weight * noise
        secrets = release.secrets_of(t)
        steps = noise_steps(
            release.noise_to_sensitivity * factor * release.widened(state.dim) / grid,
            secrets,
            (
                key.stream(self.purpose, stream_round),
                (pair_key or key).stream(Purpose.PAIR, stream_round),
            ),
            state.nodes,
            state.dim,
            None if secrets is None else held_pairs(secrets, state.nodes),
        )
        on_grid = add_on_grid(round_to_grid(centre, grid), steps, grid)
        message = read_only((on_grid / factors[0]).astype(values.dtype))
        added = read_only(np.subtract(message, values, dtype=np.float64))
        memory = (added, *state.earlier)[: len(factors) - 1]
        return message, replace(state, row=t + 1, earlier=memory)

    def _check(self, key: Key, row: int) -> None:
        if row >= self.release.rounds:
            expected = f"a run of at most {self.release.rounds} rows, as C was planned for"
            fail("state", expected, row + 1)
        instance("key", key, "a Key", Key)


def pair_numbers(pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return a number of 32 bits for each pair i < j, whatever the graph: ``j (j - 1) / 2 + i``."""
    numbers: npt.NDArray[np.uint32] = (pairs[:, 1] * (pairs[:, 1] - 1) // 2 + pairs[:, 0]).astype(
        np.uint32
    )
    return numbers


def held_pairs(
    secrets: Secrets, nodes: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the numbers of the pairs with an end among these nodes, and the rows of their ends.

    An end that is not among them is -1. The smaller node adds, the larger subtracts.
    """
    row_of = np.full(secrets.nodes, -1, dtype=np.int64)
    row_of[nodes] = np.arange(len(nodes))
    ends = row_of[secrets.pairs]
    is_held = (ends >= 0).any(axis=1)
    return pair_numbers(secrets.pairs[is_held]), ends[is_held]
