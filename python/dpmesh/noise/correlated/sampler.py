"""The rows of correlated noise, drawn round by round from keyed streams.

With the triangular matrix B of `CorrelatedGaussian.recursion` and fresh noise E_t, the noise of row
t is

    N_t = (E_t - sum over k >= 1 of B[t, k] N_(t-k)) / B[t, 0]

`draw` returns it. `send` does the same in whole steps of a grid, with the values.

A row is a function of the key, the release and the nodes alone. Its draw needs the rows of earlier
rounds, which are secret state, like the parameters: whoever has them can subtract noise. Drawing
from the same state again gives the same bits, and so does a state that was drawn again.

A row that was released must never be computed again from other values: after a crash resend the
stored message. The difference of two messages of one row is that of their values, without noise.
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
        Index of the next row of the run, from 0.
    nodes
        The node of each row of the arrays, shape (nodes,).
    dim
        Length of a message.
    dtype
        float32 or float64.
    earlier
        Noise of earlier rounds, newest first, as many as the bands need; each of shape (nodes,
        dim), read-only.
    """

    row: int
    nodes: npt.NDArray[np.uint32]
    dim: int
    dtype: np.dtype[Any]
    earlier: tuple[FloatArray, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrelatedNoise:
    """Sampler of the rows of one joint release.

    Row t, from 0, takes the local noise of node u from the stream of (`purpose`, `first_round` + t,
    u), and a pair's secret from that of (`Purpose.PAIR`, `first_round` + t, number of the pair). No
    other release of the run may use these streams.

    Parameters
    ----------
    release
        The joint release.
    purpose
        Purpose of the nodes' streams.
    first_round
        Round of row 0; the package's round 0 sends x_0 without noise.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> from dpmesh.noise import correlated
    >>> release = correlated.CorrelatedGaussian(
    ...     noise_to_sensitivity=4.0, factorization=correlated.from_matrix(np.eye(3))
    ... )
    >>> sampler = correlated.CorrelatedNoise(release=release)
    >>> state = sampler.start(nodes=[0, 1], dim=5)
    >>> noise, state = sampler.draw(dm.Key.seeded(0), state)
    >>> noise.shape, state.row
    ((2, 5), 1)
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
            Distinct nodes whose rows are drawn: all of them, or the nodes of this process.
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
        secrets = self.release.secrets_of(0)
        limit = 2**32
        if secrets is not None:
            limit = secrets.nodes
        if ids.min() < 0 or ids.max() >= limit:
            fail("nodes", f"integers from 0 to {limit - 1}", nodes)
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

        The noise is real-valued; for a release on a grid use `send`.

        Parameters
        ----------
        key
            The key of the run, for all nodes.
        state
            From `start` or `draw`.
        pair_key
            Key of the pairs' secrets, the same for both ends; or the key of each pair, by its
            number; by default `key`.
        secrets
            Secrets of this row; by default those of the release.

        Returns
        -------
        Noise of shape (nodes, dim), read-only, to be added to the messages of that round.

        Raises
        ------
        ValueError
            If the release has no more rows (a longer run needs a `factorization` with more rows),
            or `key` is not a `Key`.
        """
        release = self.release
        t = state.row
        self._check(key, t)
        secrets = secrets or release.secrets_of(t)
        stream_round = self.first_round + t
        factors = release.recursion[t]
        fresh_scale = release.noise_to_sensitivity / float(factors[0])
        local_scale = fresh_scale
        if secrets is not None:
            local_scale = fresh_scale * secrets.own
        earlier = state.earlier
        earlier_weights = -factors[1 : len(earlier) + 1] / factors[0]
        noise = kernels.correlated_gaussian(
            (len(state.nodes), state.dim),
            local_scale,
            earlier,
            earlier_weights.tolist(),
            key.stream(self.purpose, stream_round),
            dtype=state.dtype,
            nodes=state.nodes,
        )
        if secrets is not None and len(secrets.pairs):
            scale = fresh_scale * secrets.shared
            keys = key if pair_key is None else pair_key
            _add_secrets(noise, secrets, state.nodes, scale, keys, stream_round)
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

        The release must have a grid. `lattice` states what is sent.

        Parameters
        ----------
        key, state
            As in `draw`; the state keeps the noise that was added to earlier rows.
        values
            Secret values to release, shape (nodes, dim).
        factor
            Factor on the scale of the noise, which covers earlier rounding of the values.
        pair_key
            As in `draw`.

        Returns
        -------
        Messages of the values' type, shape (nodes, dim), read-only.

        Raises
        ------
        ValueError
            As `draw`, or if the release has no grid, or the grid is too fine for the noise.
        """
        release = self.release
        t = state.row
        self._check(key, t)
        grid = release.grid
        if grid is None:
            fail("release", "a release on a grid; draw is for real-valued noise", "one without")
        factors = release.recursion[t]
        stream_round = self.first_round + t
        centre = factors[0] * np.asarray(values, dtype=np.float64)
        for weight, noise in zip(factors[1:], state.earlier, strict=False):
            centre -= weight * noise
        secrets = release.secrets_of(t)
        pairs = None
        if secrets is not None:
            pairs = held_pairs(secrets, state.nodes)
        scale = release.noise_to_sensitivity * factor * release.widened(state.dim) / grid
        node_stream = key.stream(self.purpose, stream_round)
        pair_stream = (pair_key or key).stream(Purpose.PAIR, stream_round)
        streams = (node_stream, pair_stream)
        steps = noise_steps(scale, secrets, streams, state.nodes, state.dim, pairs)
        on_grid = add_on_grid(round_to_grid(centre, grid), steps, grid)
        message = read_only((on_grid / factors[0]).astype(values.dtype))
        added = read_only(np.subtract(message, values, dtype=np.float64))
        memory = (added, *state.earlier)[: len(factors) - 1]
        return message, replace(state, row=t + 1, earlier=memory)

    def _check(self, key: Key, row: int) -> None:
        """Fail if the run has no such row, or this is no key."""
        if row >= self.release.rounds:
            expected = f"a run of at most {self.release.rounds} rows, as C was planned for"
            fail("state", expected, row + 1)
        instance("key", key, "a Key", Key)


def _add_secrets(
    noise: FloatArray,
    secrets: Secrets,
    nodes: npt.NDArray[np.uint32],
    scale: float,
    keys: Key | Mapping[int, Key],
    stream_round: int,
) -> None:
    """Add the secrets of one round to the nodes' noise, in place.

    Parameters
    ----------
    noise
        Local noise of the nodes, shape (nodes, dim).
    secrets
        Pairs of nodes that share a secret.
    nodes
        The node of each row of `noise`, shape (nodes,).
    scale
        Standard deviation of a secret.
    keys
        Key of all pairs, or of each pair, by its number.
    stream_round
        Round of the random streams.
    """
    numbers, ends = held_pairs(secrets, nodes)
    if isinstance(keys, Mapping):
        key_pairs = [(keys[pair], [i]) for i, pair in enumerate(numbers.tolist())]
    else:
        key_pairs = [(keys, [*range(len(numbers))])]
    for key, indices in key_pairs:
        stream = key.stream(Purpose.PAIR, stream_round)
        kernels.add_pair_gaussian(noise, numbers[indices], ends[indices], scale, stream)


def pair_numbers(pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return the 32-bit number of each pair i < j, independent of the graph: ``j (j - 1) / 2 + i``.

    `pairs` has shape (pairs, 2), the smaller node first.
    """
    smaller = pairs[:, 0]
    larger = pairs[:, 1]
    numbers: npt.NDArray[np.uint32] = (larger * (larger - 1) // 2 + smaller).astype(np.uint32)
    return numbers


def held_pairs(
    secrets: Secrets, nodes: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the numbers of the pairs with an end among these nodes, and the rows of both ends.

    Returns
    -------
    Numbers, shape (pairs,), as of `pair_numbers`; and rows, shape (pairs, 2): -1 for an end that is
    not among the nodes. The first end, the smaller node, adds the secret; the second subtracts it.
    """
    row_of = np.full(secrets.nodes, -1, dtype=np.int64)
    row_of[nodes] = np.arange(len(nodes))
    ends = row_of[secrets.pairs]
    is_held = (ends >= 0).any(axis=1)
    return pair_numbers(secrets.pairs[is_held]), ends[is_held]
