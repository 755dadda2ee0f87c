"""Feature maps of tables, against scikit-learn's maps of the same kind, which read the data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.kernel_approximation import RBFSampler
from sklearn.preprocessing import SplineTransformer

from benches.measure import Case
from dpmesh.tables.features import Cosines, FeatureMap, Hats, Layout

RECORDS, COLUMNS = 10_000, 20


def cases() -> Iterator[Case]:
    records = np.random.default_rng(1).uniform(-1, 1, size=(RECORDS, COLUMNS))
    layout = Layout(width=COLUMNS, numbers=tuple(range(COLUMNS)), absent=(-1,) * COLUMNS)
    hats, cosines = FeatureMap((Hats(),)), FeatureMap((Cosines(),))
    splines = SplineTransformer(n_knots=Hats().knots, degree=1).fit(records)
    fourier = RBFSampler(n_components=Cosines().count, random_state=1).fit(records)
    name = f"{RECORDS:,} x {COLUMNS}"
    yield Case(
        f"hats of {name}",
        lambda: hats.encode(records, layout),
        peers={"scikit-learn": lambda: splines.transform(records)},
    )
    yield Case(
        f"cosines of {name}",
        lambda: cosines.encode(records, layout),
        peers={"scikit-learn": lambda: fourier.transform(records)},
    )
