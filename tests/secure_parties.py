"""Four sites that sum under masks, each with records, a key and a ledger of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from secure_runs import linear

from dpmesh.algorithms.cross_silo import CrossSiloSGD
from dpmesh.engines.secure import (
    Contract,
    Header,
    SigningKey,
    Site,
    SiteState,
    record_sums,
)
from dpmesh.keys import Key

DELTA = 1e-5
COUNTS = (20, 35, 50, 40)
RUN = b"run number one.."


class Parties:
    """Four sites with records of their own, in files of one folder."""

    def __init__(self, folder: Path, dim: int = 40, **changed: Any) -> None:
        public = {
            "dim": dim,
            "sites": 4,
            "records": 145,
            "rounds": 3,
            "dropouts": 1,
            "noise_multiplier": 9.0,
        }
        self.algorithm = CrossSiloSGD(**{**public, **changed})
        self.problem = linear(COUNTS, dim, 3)
        self.keys = [SigningKey.generate() for _ in COUNTS]
        self.contract = Contract(
            numbers=self.algorithm.secure_sum,
            model="logistic regression",
            site_keys=tuple(key.public for key in self.keys),
        )
        self.folder = folder
        self.sites = [self.site(i) for i in range(4)]
        self.w = np.zeros((1, dim))

    def site(self, i: int, path: Path | None = None, **changed: Any) -> Site:
        """Start a site, with its file if there is one."""
        path = path or self.folder / f"site{i}.db"
        if path.exists():
            state = SiteState.open(path)
        else:
            state = SiteState.create(
                path, epsilon=8.0, delta=DELTA, neighboring_relation="replace_one"
            )
        sums = changed.pop(
            "sums", record_sums(self.contract, self.algorithm, self.problem.for_nodes([i]))
        )
        parts = {"contract": self.contract, "signing": self.keys[i], **changed}
        return Site(parts["contract"], i, parts["signing"], state, sums)

    def header(self, attempt: int = 0, cohort: tuple[int, ...] = (0, 1, 2, 3)) -> Header:
        """Make a header as an honest server does."""
        hellos = tuple(self.sites[i].join(RUN) for i in cohort)
        readies = tuple(self.sites[i].ready(RUN) for i in cohort)
        return Header(RUN, attempt, attempt, cohort, hellos, readies)

    def answers(self, header: Header) -> dict[int, bytes]:
        return {i: self.sites[i].answer(header, self.w) for i in header.cohort}


def is_open(parties: Parties, total: Any, w: Any = None) -> bool:
    """Return whether an opened sum is that of the sites' gradients with noise, not uniform."""
    public = parties.contract.numbers
    w = parties.w if w is None else w
    true = parties.algorithm.site_sums(w, 0, parties.problem, Key.seeded(0)).sum(axis=0)
    error = (total[0] - true) / public.grid
    return bool(np.sqrt((error**2).mean()) <= 3 * public.share * np.sqrt(public.sites))
