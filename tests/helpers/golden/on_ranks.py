"""Cases on the ranks of MPI, whose records rank 0 writes: FILE NAME NAME .."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dpmesh.engines.mpi import MpiEngine

sys.path.insert(0, str(Path(__file__).parents[1]))
from golden.cases import NODES, network_of, simulate
from golden.make import record

file, *names = sys.argv[1:]
records = {}
for name in names:
    engine = MpiEngine(network_of(name) or NODES)
    run = simulate(name, engine=engine)
    if engine.is_root:
        records[name] = record(run)
if records:
    Path(file).write_text(json.dumps(records))
