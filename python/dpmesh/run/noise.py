"""The rows of correlated noise of a run: secret state, drawn in order, each released once.

A *joint event* is the correlated noise of a whole run (`CorrelatedGaussian`): a matrix of which
each round releases one *row*, with a vector for each node. Each row is drawn from the rows before
it, by `CorrelatedNoise`. `NoiseRows` keeps what was drawn, by the digest of the joint event.

Where single nodes send several vectors in a round (`Message.row_count`), each vector has a random
stream of its own: its *stream number* is ``node * row_count + index``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dpmesh._arrays import FloatArray
from dpmesh._privacy_types import Sensitive
from dpmesh._ragged import Flags, Indices
from dpmesh._validate import fail
from dpmesh.keys import Key
from dpmesh.noise.rows import CorrelatedRow

if TYPE_CHECKING:
    from dpmesh.noise.correlated.secrets import Secrets


@dataclass(frozen=True, kw_only=True)
class DrawnRows:
    """Number of drawn rows of a joint event, and the last rows, on which later rows depend.

    Parameters
    ----------
    rows
        Number of drawn rows.
    earlier
        The last rows, newest first, each of shape (streams, dim). Secret: with them an adversary
        can subtract noise.
    """

    rows: int
    earlier: tuple[FloatArray, ...] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class _CurrentRow:
    """The row of correlated noise of the current round.

    Parameters
    ----------
    row
        Index of the row.
    noise
        Noise of this process's nodes, shape (streams, dim).
    unreleased
        True where the noise is not released yet, shape (streams,).
    """

    row: int
    noise: FloatArray
    unreleased: Flags


class NoiseRows:
    """Rows of correlated noise of a run, drawn in order.

    `draw` serves messages that have one vector of each node, `draw_some` those of single nodes. If
    a round fails and is run again, its rows have the same bits.

    Parameters
    ----------
    nodes
        Indices of this process's nodes, ascending, shape (local nodes,); None for all.
    total
        Number of nodes of the run.
    pair_key
        Key of the secrets of all pairs of partners, the same for both ends; None if this process
        has none.
    """

    def __init__(self, nodes: Indices | None, total: int, pair_key: Key | None) -> None:
        self._nodes = nodes
        self._total = total
        self._pair_key = pair_key
        self.partners: Mapping[int, Key] | None = None
        """Key of the secrets with each counting partner, by its node; None if all count."""
        self.memory: dict[str, DrawnRows] = {}
        """Rows drawn in finished rounds, by the digest of the joint event."""
        self.in_round: dict[str, DrawnRows] = {}
        """Rows drawn in the current round, by the digest of the joint event."""
        self._unreleased: dict[str, _CurrentRow] = {}
        """The row of the current round, by the digest of the joint event."""

    def begin_round(self) -> None:
        """Forget rows of an earlier attempt at the round."""
        self.in_round.clear()
        self._unreleased.clear()

    def recall(self, memory: dict[str, DrawnRows]) -> None:
        """Resume with the rows drawn so far."""
        self.memory = memory

    def draw(self, key: Key, mechanism: CorrelatedRow, t: int, values: Sensitive) -> FloatArray:
        """Return the noise of the next row for the values of round t; on a grid, the noisy values.

        Raises
        ------
        ValueError
            If the row is not the next one; or if partners share noise and have no common key.
        """
        stream_numbers = np.arange(len(values)) if self._nodes is None else self._nodes
        next_row = self._drawn(mechanism).rows
        if mechanism.row != next_row or t < next_row:
            expected = f"row {next_row} of the correlated noise: each is released once"
            fail("release", expected, mechanism.row)
        return self._next(key, mechanism, t, values, stream_numbers)

    def draw_some(
        self,
        key: Key,
        mechanism: CorrelatedRow,
        t: int,
        values: Sensitive,
        rows: Indices,
        among: int,
    ) -> FloatArray:
        """Return the noise of some streams in round t, where single nodes send.

        Noise of earlier rounds that this process did not use is drawn first, since rows are drawn
        in order.

        Parameters
        ----------
        key
            Key of the run.
        mechanism
            The row of the joint event.
        t
            Number of the round.
        values
            Values of the sending node, shape (vectors, dim): their length and type count.
        rows
            Stream numbers of the released vectors; none to draw the row without a release.
        among
            Number of vectors of each node.

        Returns
        -------
        Shape (rows, dim).

        Raises
        ------
        ValueError
            As `draw`, or if the noise of a stream was released in this round.
        """
        nodes = np.arange(self._total) if self._nodes is None else self._nodes
        stream_numbers = (nodes[:, np.newaxis] * among + np.arange(among)).reshape(-1)
        event = mechanism.joint.digest
        if event not in self._unreleased:
            self._unreleased[event] = self._draw_up_to(key, mechanism, t, values, stream_numbers)
        current = self._unreleased[event]
        places = np.searchsorted(stream_numbers, rows)
        if current.row != mechanism.row or not current.unreleased[places].all():
            expected = f"row {current.row} of the correlated noise once for each node"
            fail("release", expected, rows)
        current.unreleased[places] = False
        return current.noise[places]

    def _draw_up_to(
        self, key: Key, mechanism: CorrelatedRow, t: int, values: Sensitive, stream_numbers: Indices
    ) -> _CurrentRow:
        """Draw all rows of noise up to the row of a mechanism, for these streams.

        Parameters are those of `draw_some`.
        """
        next_row = self._drawn(mechanism).rows
        if next_row > mechanism.row:
            expected = f"row {next_row} of the correlated noise: each is released once"
            fail("release", expected, mechanism.row)
        shape = (len(stream_numbers), values.shape[1])
        like = Sensitive(np.broadcast_to(values[:1], shape))
        for row in range(next_row, mechanism.row + 1):
            row_mechanism = CorrelatedRow.of(mechanism.joint, row)
            row_round = t - mechanism.row + row
            noise = self._next(key, row_mechanism, row_round, like, stream_numbers)
        unreleased = np.ones(len(stream_numbers), dtype=np.bool_)
        return _CurrentRow(row=mechanism.row, noise=noise, unreleased=unreleased)

    def _drawn(self, mechanism: CorrelatedRow) -> DrawnRows:
        """Return the rows of a joint event that were drawn so far."""
        event = mechanism.joint.digest
        nothing = DrawnRows(rows=0, earlier=())
        return self.in_round.get(event) or self.memory.get(event) or nothing

    def _next(
        self, key: Key, mechanism: CorrelatedRow, t: int, values: Sensitive, stream_numbers: Indices
    ) -> FloatArray:
        """Draw the next row of a joint event, for these streams.

        Returns
        -------
        The noise, or the noisy values if the event is on a grid; shape (streams, dim).

        Raises
        ------
        ValueError
            If partners share noise and have no common key, or the secrets are of other nodes.
        """
        from dpmesh.noise.correlated.sampler import CorrelatedNoise, NoiseState

        joint = mechanism.joint
        row = mechanism.row
        secrets, key_of_pair = self._secrets(mechanism, stream_numbers)
        nodes = len(stream_numbers) if self._nodes is None else self._total
        if secrets is not None and nodes != secrets.nodes:
            fail("noise", f"secrets of the run's {nodes} nodes", f"of {secrets.nodes}")
        state = NoiseState(
            row=row,
            nodes=stream_numbers.astype(np.uint32),
            dim=values.shape[1],
            dtype=values.dtype,
            earlier=self._drawn(mechanism).earlier,
        )
        sampler = CorrelatedNoise(release=joint, first_round=t - row)
        if joint.grid is None:
            noise, after = sampler.draw(key, state, key_of_pair or self._pair_key, secrets)
        else:
            factor = mechanism.rounding_factor(values)
            noise, after = sampler.send(key, state, values, factor=factor, pair_key=self._pair_key)
        self.in_round[joint.digest] = DrawnRows(rows=after.row, earlier=after.earlier)
        return noise

    def _secrets(
        self, mechanism: CorrelatedRow, stream_numbers: Indices
    ) -> tuple[Secrets | None, Mapping[int, Key] | None]:
        """Return the secrets of a row, and the key of each pair where only some partners count.

        In the second case this process has one node (a party of a contract), and the secrets are
        those of this node alone, by `Secrets.counting`.

        Raises
        ------
        ValueError
            If partners share noise and have no common key.
        """
        from dpmesh.noise.correlated.sampler import pair_numbers

        secrets = mechanism.joint.secrets_of(mechanism.row)
        if secrets is None:
            return None, None
        if self.partners is None:
            if self._pair_key is None:
                expected = "partners that have a key for their secrets"
                fail("noise", expected, "none for other parties")
            return secrets, None
        node = int(stream_numbers[0])
        secrets = secrets.counting(node, self.partners)
        partners = (secrets.pairs.sum(axis=1) - node).tolist()
        pairs = pair_numbers(secrets.pairs).tolist()
        key_of_pair = {
            pair: self.partners[partner] for pair, partner in zip(pairs, partners, strict=True)
        }
        return secrets, key_of_pair
