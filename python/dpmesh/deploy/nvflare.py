"""Differential privacy for a site of NVIDIA FLARE: a filter of task results.

Needs the extra ``nvflare``. The filter clips the update that a site sends, adds noise, and keeps a
ledger that refuses what the site's budget does not allow:

    job.to_clients(
        PrivateUpdate(
            clipping_norm=0.5, noise_multiplier=20.0, epsilon=8.0, delta=1e-5,
            ledger="/var/lib/dpmesh/ledger.sqlite",
        ),
        tasks=["train", "validate", "submit_model"],
    )
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh._extras import needed_by
from dpmesh._files import durable_folder
from dpmesh._privacy_types import Sensitive
from dpmesh._validate import fail, positive, probability
from dpmesh.accounting import noise_to_sensitivity
from dpmesh.keys import Key, Purpose
from dpmesh.noise.mechanisms import Gaussian
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release

with needed_by("the transport 'nvflare'"):
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.filter import Filter
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable, make_reply
    from nvflare.app_common.app_constant import AppConstants

UNIT = "all records of this site, replaced by any others"
"""Unit of the guarantee, as the log states it."""
ASSUMPTION = "everything else that the site sends is public: its name, its timing, its failures"

_RELEASES = """
CREATE TABLE IF NOT EXISTS releases (
    number INTEGER PRIMARY KEY,
    clipping_norm REAL NOT NULL,
    noise_multiplier REAL NOT NULL,
    at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)
"""
"""SQL statement that makes the ledger's table: one row for each release."""


class PrivateUpdate(Filter):
    """A filter of task results that makes a site's model updates differentially private.

    NVFlare calls it at the site, for each result, before the result leaves the site. Each release
    is in the ledger, on disk, before its noise is drawn.

    Make it the last filter of results, and name every task that the site answers: NVFlare reads a
    filter's ``"*"`` as a task of that name, and then filters nothing. The filter accepts updates
    alone (``DataKind.WEIGHT_DIFF``, in a client script ``params_transfer_type=TransferType.DIFF``).
    It removes metrics and numbers of steps, so that all sites weigh the same. It refuses any other
    result, and NVFlare then sends an error without data.

    Parameters
    ----------
    clipping_norm
        The L2 norm to which the update, all arrays together, is clipped.
    noise_multiplier
        Standard deviation of the noise over the clipping norm.
    epsilon, delta
        The budget of the site: the most that all releases in the ledger may cost together. A
        release that would exceed it is refused, and the job halts.
    ledger
        File of the ledger, on a disk of the site. It outlives jobs: all that name the same file
        share the budget. Two sites in one process (the simulator) need ``{site}`` in its name.

    Guarantee
    ---------
    (epsilon, delta)-differential privacy of the site's whole data set (unit: all records of one
    site, replaced by any others), against the server and all other sites, over all jobs with this
    ledger. No server is trusted, so each site adds the whole noise. The guarantee is no stronger
    for a single record: for record-level DP with less noise, train by DP-SGD inside the site. Noise
    is floating-point Gaussian noise from a key of the operating system.

    Raises
    ------
    ValueError
        If a number is out of its range.

    References
    ----------
    Two clipped updates differ by at most twice the clipping norm. The epsilon of all Gaussian
    releases together is exact (Dong, Roth and Su, "Gaussian differential privacy", 2022).
    """

    def __init__(
        self,
        clipping_norm: float,
        noise_multiplier: float,
        epsilon: float,
        delta: float,
        ledger: str,
    ) -> None:
        super().__init__()
        positive("clipping_norm", clipping_norm)
        positive("noise_multiplier", noise_multiplier)
        positive("epsilon", epsilon)
        probability("delta", delta, one=False)
        if delta == 0:
            fail("delta", "above 0, as Gaussian noise needs it", delta)
        self.clipping_norm = clipping_norm
        self.noise_multiplier = noise_multiplier
        self.epsilon = epsilon
        self.delta = delta
        self.ledger = ledger
        self._key: Key | None = None
        """Key of the noise, drawn at the first release."""
        self._draws = 0
        """Number of releases that this object drew noise for; each has another stream."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the private update of a result; called by NVFlare.

        Raises
        ------
        ValueError
            If the result holds anything but an update of floating-point arrays.
        OverBudget
            If the budget does not allow the release.
        """
        status = shareable.get_return_code()
        if status != ReturnCode.OK:
            return make_reply(status)  # a failure, without data
        update = from_shareable(shareable)  # a DXO, NVFlare's container of data
        if update.data_kind != DataKind.WEIGHT_DIFF:
            expected = "an update, WEIGHT_DIFF (params_transfer_type=TransferType.DIFF)"
            fail("result", expected, update.data_kind)
        vector = _as_vector(update.data)
        site = str(fl_ctx.get_identity_name())
        spent = self._charge(site)
        self.log_info(
            fl_ctx,
            f"epsilon = {rounded_up(spent)} of {self.epsilon:g} at delta = {self.delta:g} after "
            f"this release; unit: {UNIT}; assumption: {ASSUMPTION}",
        )
        arrays = _as_arrays(self._released(vector), update.data)
        private_result = DXO(DataKind.WEIGHT_DIFF, data=arrays).to_shareable()
        current_round = shareable.get_header(AppConstants.CURRENT_ROUND)
        if isinstance(current_round, int):
            private_result.set_header(AppConstants.CURRENT_ROUND, current_round)
        return private_result

    @property
    def _mechanism(self) -> Gaussian:
        """The mechanism of a release: Gaussian noise on the clipped update."""
        return Gaussian(_relative(self.noise_multiplier), clipping_norm=self.clipping_norm)

    @property
    def _sensitivity(self) -> Sensitivity:
        """The largest L2 distance between two clipped updates."""
        return Sensitivity(2 * self.clipping_norm, "l2", "two updates in the ball of this radius")

    def _charge(self, site: str) -> float:
        """Record the next release in the ledger, on disk; return the epsilon of all releases.

        Raises
        ------
        OverBudget
            If the budget does not allow the release, which is then not recorded.
        """
        path = Path(self.ledger.replace("{site}", site))
        with _transaction(path) as connection:
            rows = connection.execute("SELECT noise_multiplier FROM releases ORDER BY number")
            earlier = [self._release(number, noise) for number, (noise,) in enumerate(rows)]
            plan = Plan(
                releases=(),
                neighboring_relation="replace_one",
                unit="user",
                assumptions=(ASSUMPTION,),
            )
            ledger = Ledger(plan, Budget(self.epsilon, delta=self.delta))
            ledger.restore(earlier)
            ledger.admit(self._release(len(earlier), self.noise_multiplier), None)
            ledger.end_round()
            connection.execute(
                "INSERT INTO releases (clipping_norm, noise_multiplier) VALUES (?, ?)",
                (self.clipping_norm, self.noise_multiplier),
            )
            return plan.with_releases(tuple(ledger.releases)).cost(self.delta).epsilon

    def _release(self, number: int, noise_multiplier: float) -> Release:
        """Return an earlier or the next release, as it is accounted."""
        return Release(number, Gaussian(_relative(noise_multiplier)), self._sensitivity)

    def _released(self, update: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
        """Return an update, shape (dim,), clipped and with noise; zeros if it is not finite."""
        if not np.isfinite(update).all():
            update = np.zeros_like(update)
        largest = float(np.abs(update).max(initial=0.0))
        if largest > 2 * self.clipping_norm:  # its square may be beyond the type's range
            update = update * (2 * self.clipping_norm / largest)
        if self._key is None:  # not in __init__, which also runs where a job is written
            self._key = Key.generate()
        stream = self._key.stream(Purpose.NOISE, self._draws)
        self._draws += 1
        values = Sensitive(update[np.newaxis])
        return self._mechanism.release(values, self._sensitivity, stream)[0]


def _relative(noise_multiplier: float) -> float:
    """Return the standard deviation over the sensitivity, which is twice the clipping norm."""
    return noise_to_sensitivity(noise_multiplier, neighboring_relation="replace_one")


@contextmanager
def _transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a ledger for one release; other processes wait. Commit unless the block fails.

    The commit is on disk when it returns: with EXTRA, SQLite syncs the folder too, in which it
    removes its journal. Else a power loss could bring the journal back, and undo the commit.
    """
    durable_folder(path.parent)
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(_RELEASES)
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _as_vector(arrays: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return all arrays as one vector of float64, in their order.

    Raises
    ------
    ValueError
        If there are none, or some hold other than floating-point numbers.
    """
    parts = [np.asarray(arrays[name]) for name in arrays]
    kinds = sorted({str(part.dtype) for part in parts})
    if not parts or any(part.dtype.kind != "f" for part in parts):
        fail("update", "floating-point arrays alone (leave out counters)", kinds)
    return np.concatenate([part.ravel().astype(np.float64) for part in parts])


def _as_arrays(vector: Any, example: Mapping[str, Any]) -> dict[str, Any]:
    """Return a vector as arrays with the names, shapes and types of an example."""
    arrays: dict[str, Any] = {}
    first = 0
    for name, value in example.items():
        part = np.asarray(value)
        numbers = vector[first : first + part.size]
        arrays[name] = numbers.reshape(part.shape).astype(part.dtype)
        first += part.size
    return arrays
