"""Four sites that sum under masks, each with records, a key and a ledger of its own."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
from secure_runs import linear

from dpmesh.algorithms.cross_silo import CrossSiloSGD
from dpmesh.engines.secure import (
    Contract,
    Folder,
    Header,
    Site,
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
        self.folder, self._open = folder, dict[int, Folder]()
        for i in range(len(COUNTS)):
            made = Folder.create(folder / f"site{i}", epsilon=8.0, delta=DELTA)
            self._open[i] = made
        self.keys = [made.signing for made in self._open.values()]
        self.contract = Contract(
            numbers=self.algorithm.secure_sum,
            model="logistic regression",
            site_keys=tuple(key.public for key in self.keys),
        )
        self.sites = [self.site(i) for i in range(len(COUNTS))]
        self.w = np.zeros((1, dim))

    def site(self, i: int, path: Path | None = None, **changed: Any) -> Site:
        """Start a site from its folder, or from a copy of it."""
        path = path or self.folder / f"site{i}"
        folder = self._open.pop(i, None) or Folder.open(path)
        contract = changed.get("contract", self.contract)
        own = record_sums(contract, self.algorithm, self.problem.for_nodes([i]))
        return Site(contract, folder, changed.get("sums", own))

    def close(self, i: int) -> None:
        """End the process of a site."""
        self.sites[i].folder.close()

    def backup(self, i: int) -> Path:
        """Copy the folder of a site, which goes on."""
        self.close(i)
        copy = copytree(self.folder / f"site{i}", self.folder / f"backup{i}")
        self.sites[i] = self.site(i)
        return copy

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
