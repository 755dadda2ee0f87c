"""The rows of correlated noise of a run: secret state, drawn in order, each released once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import FloatArray
from dpmesh._ragged import Indices
from dpmesh._validate import fail
from dpmesh.keys import Key
from dpmesh.privacy.rows import CorrelatedRow
from dpmesh.privacy.types import Sensitive


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
    whole
        Whether all nodes are here.
    """

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self.memory: dict[str, DrawnRows] = {}
        """What the finished rounds drew, by the digest of the joint event."""
        self.in_round: dict[str, DrawnRows] = {}
        """What the round that is not over drew."""
        self._left: dict[str, tuple[int, FloatArray, npt.NDArray[np.bool_]]] = {}
        """The row of that round, its noise, and which of it is not released yet."""

    def begin_round(self) -> None:
        """Forget what an earlier try of the round drew."""
        self.in_round.clear()
        self._left.clear()

    def draw_some(
        self,
        key: Key,
        mechanism: CorrelatedRow,
        t: int,
        values: Sensitive,
        rows: Indices,
        count: int,
    ) -> FloatArray:
        """Return the noise of some of the `count` rows of round t, which nodes release in turn.

        Raises
        ------
        ValueError
            As `draw`, or if a row was released in this round, or some nodes are elsewhere.
        """
        if not self._whole:
            fail("engine", "one process, in which nodes take turns", "several")
        name = mechanism.joint.digest
        if name not in self._left:
            whole = np.broadcast_to(values[:1], (count, values.shape[1]))
            noise = self.draw(key, mechanism, t, Sensitive(whole))
            self._left[name] = mechanism.row, noise, np.ones(count, dtype=np.bool_)
        row, noise, left = self._left[name]
        if row != mechanism.row or not left[rows].all():
            fail("release", f"row {row} of the correlated noise once for each node", rows)
        left[rows] = False
        return noise[rows]

    def recall(self, memory: dict[str, DrawnRows]) -> None:
        """Go on from there."""
        self.memory = memory

    def draw(self, key: Key, mechanism: CorrelatedRow, t: int, values: Sensitive) -> FloatArray:
        """Return the noise of a row for the values of round t; on a grid, the noisy values.

        Row r of the values draws as row r of the key.

        Raises
        ------
        ValueError
            If the row was drawn already, or an earlier one was not; or if partners share secrets
            and some nodes are in another process.
        """
        from dpmesh.privacy.correlated.sampler import CorrelatedNoise, NoiseState

        joint, row = mechanism.joint, mechanism.row
        secrets = joint.secrets_of(row)
        if secrets is not None and not self._whole:
            fail("engine", "one process, in which partners' secrets are simulated", "several")
        if secrets is not None and len(values) != secrets.nodes:
            fail("noise", f"secrets of the run's {len(values)} nodes", f"of {secrets.nodes}")
        drawn = self.in_round.get(joint.digest) or self.memory.get(joint.digest)
        done = 0 if drawn is None else drawn.rows
        if row != done or t < row:
            fail("release", f"row {done} of the correlated noise: each is released once", row)
        nodes, dim = values.shape
        state = NoiseState(
            row=row,
            nodes=np.arange(nodes, dtype=np.uint32),
            dim=dim,
            dtype=values.dtype,
            earlier=() if drawn is None else drawn.earlier,
        )
        sampler = CorrelatedNoise(release=joint, first_round=t - row)
        if joint.grid is None:
            noise, after = sampler.draw(key, state)
        else:
            factor = mechanism.rounding_factor(values)
            noise, after = sampler.send(key, state, values, factor=factor)
        self.in_round[joint.digest] = DrawnRows(rows=after.row, earlier=after.earlier)
        return noise
