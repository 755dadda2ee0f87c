"""Record what the cases give: ``python tests/helpers/golden/make.py`` writes golden.json anew.

Do so only for a change of the results that is wanted, and name it in the changelog.
"""

from __future__ import annotations

import json
import math
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

import dpmesh as dm

FILE = Path(__file__).with_name("golden.json")
FEW = 4


def ledger_rows(run: dm.Run) -> list[list[Any]]:
    """Return a row of plain data for each release: its nodes come last, none for all."""
    return [
        [
            release.round,
            release.name,
            release.noise_to_sensitivity,
            release.sensitivity.bound,
            release.sensitivity.norm,
            release.batch,
            None if release.sampling is None else release.sampling.rate,
            *(release.nodes or ()),
        ]
        for release in run.ledger.releases
    ]


def array_record(values: np.ndarray) -> dict[str, Any]:
    """Return the bits of an array as a hash, and a few of its numbers."""
    return {
        "sha256": sha256(np.ascontiguousarray(values).tobytes()).hexdigest(),
        "dtype": str(values.dtype),
        "shape": list(values.shape),
        "numbers": values.ravel()[:FEW].tolist(),
    }


def record(run: dm.Run) -> dict[str, Any]:
    """Return what must stay of a run, as plain data."""
    return {
        "parameters": array_record(run.parameters),
        "released": array_record(run.released),
        "ledger": ledger_rows(run),
        "epsilon": run.privacy.epsilon,
        "traffic": [run.traffic.messages, run.traffic.bits],
        "history": {name: run.history[name].tolist() for name in run.history.metrics},
    }


def repeats_record(runs: Any) -> dict[str, Any]:
    """Return what must stay of repeated runs."""
    arrays = {name: array_record(getattr(runs, name)) for name in ("parameters", "released")}
    return {**arrays, "losses": runs.losses.ravel().tolist()}


def platform() -> str:
    """Return a hash of what C libraries, scipy and numpy's generator compute here.

    Noise scales, step sizes and failures of a network are made of such numbers, whose last bits
    differ between platforms; where this differs, hashes are not compared. So it must not use the
    package, which would hide what changed there.
    """
    grid = [i / 7 for i in range(1, 50)]
    numbers = [f(x) for x in grid for f in (math.exp, math.log, lambda x: x**-0.3)]
    generator = np.random.default_rng(1)
    parts = [
        numbers,
        special.log_ndtr(grid),
        generator.exponential(size=20),
        generator.permutation(20),
    ]
    return sha256(np.concatenate(parts).tobytes()).hexdigest()


def main() -> None:
    """Write the records of all cases."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from golden import cases

    golden: dict[str, Any] = {name: record(cases.simulate(name)) for name in cases.CASES}
    golden |= {"repeats": repeats_record(cases.repeats()), "platform": platform()}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in golden.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
