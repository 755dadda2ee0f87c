"""The rows of correlated noise of a run: secret state, drawn in order, each released once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dpmesh._arrays import FloatArray
from dpmesh._privacy_types import Sensitive
from dpmesh._ragged import Flags, Indices
from dpmesh._validate import fail
from dpmesh.keys import Key
from dpmesh.noise.rows import CorrelatedRow


@dataclass(frozen=True, kw_only=True)
class DrawnRows:
    """How many rows of a joint event were drawn, and the last ones, which later rows need.

    Parameters
    ----------
    rows
        Their number.
    earlier
        The last ones, newest first, each of shape (nodes, dim). Whoever has them can subtract
        noise.
    """

    rows: int
    earlier: tuple[FloatArray, ...] = field(repr=False)


class NoiseRows:
    """Draws the rows of the joint events of a run.

    A round that fails has drawn nothing: drawn again, its rows have the same bits.

    Parameters
    ----------
    nodes
        The numbers of the nodes that are here, ascending; None for all.
    total
        Number of nodes of the run.
    pair_key
        Where the secrets of partners come from, the same wherever a partner is; None if they have
        no such key.
    """

    def __init__(self, nodes: Indices | None, total: int, pair_key: Key | None) -> None:
        self._nodes, self._total, self._pair_key = nodes, total, pair_key
        self.partners: Mapping[int, Key] | None = None
        """Where the secrets with each partner who counts come from; None if all count."""
        self.memory: dict[str, DrawnRows] = {}
        """What the finished rounds drew, by the digest of the joint event."""
        self.in_round: dict[str, DrawnRows] = {}
        """What the round that is not over drew."""
        self._left: dict[str, tuple[int, FloatArray, Flags]] = {}
        """The row of that round, its noise, and which of it is not released yet."""

    def begin_round(self) -> None:
        """Forget what an earlier try of the round drew."""
        self.in_round.clear()
        self._left.clear()

    def recall(self, memory: dict[str, DrawnRows]) -> None:
        """Resume with the rows drawn so far."""
        self.memory = memory

    def draw(self, key: Key, mechanism: CorrelatedRow, t: int, values: Sensitive) -> FloatArray:
        """Return the noise of a row for the values of round t; on a grid, the noisy values.

        Each node draws as its number.

        Raises
        ------
        ValueError
            If the row was drawn already, or an earlier one was not; or if partners share secrets
            and have no key that is the same for both.
        """
        here = np.arange(len(values)) if self._nodes is None else self._nodes
        done = self._drawn(mechanism).rows
        if mechanism.row != done or t < done:
            wanted = f"row {done} of the correlated noise: each is released once"
            fail("release", wanted, mechanism.row)
        return self._next(key, mechanism, t, values, here)

    def draw_some(
        self,
        key: Key,
        mechanism: CorrelatedRow,
        t: int,
        values: Sensitive,
        rows: Indices,
        among: int,
    ) -> FloatArray:
        """Return the noise of some rows of round t, which nodes of `among` rows release in turn.

        Rows of rounds in which nothing arrived here are drawn as well: all noise is drawn in order.

        Raises
        ------
        ValueError
            As `draw`, or if a row was released in this round.
        """
        nodes = np.arange(self._total) if self._nodes is None else self._nodes
        here = (nodes[:, np.newaxis] * among + np.arange(among)).reshape(-1)
        name = mechanism.joint.digest
        if name not in self._left:
            if (done := self._drawn(mechanism).rows) > mechanism.row:
                wanted = f"row {done} of the correlated noise: each is released once"
                fail("release", wanted, mechanism.row)
            whole = Sensitive(np.broadcast_to(values[:1], (len(here), values.shape[1])))
            for row in range(self._drawn(mechanism).rows, mechanism.row + 1):
                at = CorrelatedRow.of(mechanism.joint, row)
                noise = self._next(key, at, t - mechanism.row + row, whole, here)
            self._left[name] = mechanism.row, noise, np.ones(len(here), dtype=np.bool_)
        row, noise, left = self._left[name]
        places = np.searchsorted(here, rows)
        if row != mechanism.row or not left[places].all():
            fail("release", f"row {row} of the correlated noise once for each node", rows)
        left[places] = False
        return noise[places]

    def _drawn(self, mechanism: CorrelatedRow) -> DrawnRows:
        """Return what was drawn so far of a joint event."""
        name = mechanism.joint.digest
        nothing = DrawnRows(rows=0, earlier=())
        return self.in_round.get(name) or self.memory.get(name) or nothing

    def _next(
        self, key: Key, mechanism: CorrelatedRow, t: int, values: Sensitive, here: Indices
    ) -> FloatArray:
        """Draw the next row of a joint event for these numbers of rows."""
        from dpmesh.noise.correlated.sampler import CorrelatedNoise, NoiseState, pair_numbers

        joint, row, drawn = mechanism.joint, mechanism.row, self._drawn(mechanism)
        secrets, pair_key = joint.secrets_of(row), self._pair_key
        of_pairs: Mapping[int, Key] | None = None
        if secrets is not None and self.partners is not None:
            node = int(here[0])
            secrets = secrets.counting(node, self.partners)
            others = (secrets.pairs.sum(axis=1) - node).tolist()
            numbers = pair_numbers(secrets.pairs).tolist()
            of_pairs = {n: self.partners[j] for n, j in zip(numbers, others, strict=True)}
        elif secrets is not None and pair_key is None:
            fail("noise", "partners that have a key for their secrets", "none for other parties")
        nodes = len(here) if self._nodes is None else self._total
        if secrets is not None and nodes != secrets.nodes:
            fail("noise", f"secrets of the run's {nodes} nodes", f"of {secrets.nodes}")
        state = NoiseState(
            row=row,
            nodes=here.astype(np.uint32),
            dim=values.shape[1],
            dtype=values.dtype,
            earlier=drawn.earlier,
        )
        sampler = CorrelatedNoise(release=joint, first_round=t - row)
        if joint.grid is None:
            noise, after = sampler.draw(key, state, of_pairs or pair_key, secrets)
        else:
            factor = mechanism.rounding_factor(values)
            noise, after = sampler.send(key, state, values, factor=factor, pair_key=pair_key)
        self.in_round[joint.digest] = DrawnRows(rows=after.row, earlier=after.earlier)
        return noise
