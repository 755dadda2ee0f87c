"""Preparation of a run before its first round: checks, plan, keys, carrier, ledger and checkpoint.

`simulate` calls `prepare`, and then runs the rounds (`dpmesh.run.loop`).
"""

from __future__ import annotations

import reprlib
import secrets
import warnings
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias, get_args
from zlib import crc32

import numpy as np
from scipy import sparse

from dpmesh._validate import fail, instance, one_of, probability, require_methods
from dpmesh.algorithms.base import AN_ALGORITHM, Algorithm, AnyAlgorithm
from dpmesh.algorithms.messages import Communication
from dpmesh.data import Dataset
from dpmesh.kernels import row_norms
from dpmesh.keys import A_KEY, Key, fingerprint
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.views import Everybody, EverybodyButPartners
from dpmesh.problems import LinearProblem, Problem
from dpmesh.run.carriers import Carrier
from dpmesh.run.channel import Channel
from dpmesh.run.checkpoint import Checkpoint, SavedRun, salt_in
from dpmesh.run.engine import Engine, OneProcess, Share
from dpmesh.run.failing import RealizedNetwork, carrier_for
from dpmesh.run.identity import Identity, digest, identity
from dpmesh.run.metrics import Metric, Metrics, build_metrics
from dpmesh.run.network import Network
from dpmesh.run.ranks import OnRoot, gathered, scattered
from dpmesh.run.rounds import Progress, Rounds

if TYPE_CHECKING:
    from dpmesh.topology import Topology

AnyProblem: TypeAlias = Any
"""A problem of whichever class."""

LARGEST_SCALED_NORM = 50.0
"""L2 norm of a record above which a warning says that the columns are not scaled."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Arguments of `simulate`, which documents them."""

    algorithm: AnyAlgorithm
    problem: Problem
    topology: Topology | None
    rounds: int
    key: Key | None
    delta: float | None
    budget: Budget | None
    metrics: Metrics
    engine: Engine | Network | None
    checkpoint: Checkpoint | None

    @property
    def every(self) -> int:
        """Interval in rounds between two measurements."""
        if self.metrics.every is not None:
            return self.metrics.every
        return max(1, self.rounds // 25)

    @property
    def network(self) -> Network | None:
        """Simulated network with delays and failures; None without one."""
        if isinstance(self.engine, Network):
            return self.engine
        return None

    @property
    def ranks(self) -> Engine | None:
        """Engine with several processes; None without one."""
        if isinstance(self.engine, Network):
            return None
        return self.engine


def check_kinds(request: RunRequest) -> None:
    """Fail unless the arguments have the right types."""
    algorithm: object = request.algorithm
    instance("algorithm", algorithm, AN_ALGORITHM, Algorithm)
    one_of(
        "algorithm.communication",
        getattr(algorithm, "communication", None),
        get_args(Communication),
    )
    _check_problem(request.problem)
    if request.topology is not None:
        _check_topology(request.topology, request.algorithm)
    instance("key", request.key, f"{A_KEY}, or None", Key, NoneType)
    instance("budget", request.budget, "a dpmesh.privacy.Budget or None", Budget, NoneType)
    if request.ranks is not None:
        expected = "a dpmesh.Network, an engine such as dpmesh.engines.mpi.MpiEngine(topology), "
        require_methods("engine", request.ranks, f"{expected}or None", "share")


def _check_problem(problem: object) -> None:
    """Fail unless a problem has `nodes` and `test`, and `accuracy` if it has test records."""
    if getattr(problem, "test", problem) is not None:
        require_methods("problem", problem, "what is to be learned", "accuracy")
    for name in ("nodes", "test"):
        if not hasattr(problem, name):
            fail("problem", f"what is to be learned, with {name}", reprlib.repr(problem))


def _check_topology(topology: Topology, algorithm: AnyAlgorithm) -> None:
    """Fail unless a topology has mixing matrices for which the algorithm's guarantee is proved."""
    from dpmesh.topology import MixingMatrix, PushMatrix

    expected = "a topology of dpmesh.topology: ring(16), from_networkx(graph), "
    expected += "Static(MixingMatrix(weights)) or another"
    require_methods("topology", topology, expected, "matrix")
    first = topology.matrix(0)
    instance("topology", first, "one whose matrix(round) is a MixingMatrix", MixingMatrix)
    if isinstance(first, PushMatrix) and not algorithm.takes_directed:
        name = type(algorithm).__name__
        expected = f"doubly stochastic matrices, on which the proof of {name} rests; PushSum "
        fail("topology", f"{expected}learns over directed networks", topology)


def check_records(algorithm: AnyAlgorithm, problem: Problem, rounds: int) -> None:
    """Fail if an algorithm that uses each record once has too few records for the rounds."""
    most_rounds = algorithm.most_rounds(problem)
    if most_rounds == 0:
        fail("problem", "enough records at each node for one round", "fewer")
    if most_rounds is not None and rounds > most_rounds:
        fail(
            "rounds", f"at most {most_rounds}, as many as the records last, each used once", rounds
        )


def wide_enough(algorithm: AnyAlgorithm, problem: AnyProblem, rounds: int) -> AnyProblem:
    """Return the problem, in float64 if the algorithm's values may be too large for float32."""
    outgrows = getattr(algorithm, "outgrows_single", None)
    if outgrows is None or type(problem) is not LinearProblem:
        return problem
    if problem.train.features.dtype == np.float64 or not outgrows(rounds, problem.dim):
        return problem

    test = None if problem.test is None else _in_float64(problem.test)
    return replace(problem, train=_in_float64(problem.train), test=test)


def _in_float64(data: Dataset) -> Dataset:
    """Return a dataset with its features in float64."""
    return replace(data, features=data.features.astype(np.float64))


def warn_unscaled(problem: object) -> None:
    """Warn if records have norms far above 1: clipping would discard most of their content."""
    if not isinstance(problem, LinearProblem) or problem.feature_norm is not None:
        return
    features: Any = problem.train.features
    if sparse.issparse(features):  # the largest entry is no longer than its record: no copy
        entries = features.data
        longest = float(max(entries.max(initial=0), -entries.min(initial=0)))
    else:
        longest = float(row_norms(features).max(initial=0))
    if longest > LARGEST_SCALED_NORM:
        warnings.warn(
            f"records have norms of {longest:.4g} and more, far above 1: scale the columns by "
            "public ranges (dm.tables.Columns, dm.data.scaled) or records to norm 1 "
            "(dm.data.unit_norm)",
            UserWarning,
            stacklevel=4,
        )


def check_view(budget: Budget, topology: Topology | None) -> None:
    """Fail unless the adversary's view of a budget is on the run's topology."""
    topology_of_view = getattr(budget.view, "topology", None)
    if topology_of_view is None or topology_of_view is topology:
        return
    if topology_of_view != topology:
        fail("budget", f"a view of the run's topology, {topology}", f"one of {topology_of_view}")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Run before its first round, or before the first round after a checkpoint.

    Parameters
    ----------
    request
        Arguments of `simulate`. Problem and budget are adapted to the run: features may be in
        float64, and the budget's view has the failures of the network.
    delta
        Delta of the privacy report.
    plan
        Planned releases.
    ranks
        Processes of the run.
    seeded
        True if any process has a seeded key.
    run
        Rounds of this process.
    saved
        File of the checkpoint; None without one.
    """

    request: RunRequest
    delta: float
    plan: Plan
    ranks: Engine
    seeded: bool
    run: Rounds
    saved: SavedRun | None


def prepare(request: RunRequest) -> Prepared:
    """Check the arguments of `simulate` and return a run that can begin.

    It raises the errors that `simulate` documents.
    """
    algorithm = request.algorithm
    topology = request.topology
    network = request.network
    delta = _delta(request)
    check_records(algorithm, request.problem, request.rounds)
    request = replace(request, problem=wide_enough(algorithm, request.problem, request.rounds))
    warn_unscaled(request.problem)
    if request.checkpoint is not None and request.key is None:
        fail("key", "one that you keep, since no checkpoint holds it: Key.load, Key.seeded", None)
    keys = _Keys(request)
    if request.budget is not None:
        check_view(request.budget, topology)
        budget = _with_failures(request.budget, network, keys.run_key)
        request = replace(request, budget=budget)
    plan = _plan(request)
    instance("algorithm", plan, "one whose plan(rounds) is a Plan", Plan)
    meters = build_metrics(request.metrics.metrics, algorithm, request.problem)
    facts: Identity = {}
    if request.checkpoint is not None or keys.ranks.processes > 1:
        facts = _identity(request, plan)
        _check_same(keys.ranks, facts)
    carrier = carrier_for(algorithm, request.problem, topology, network, keys.run_key)
    all_nodes = keys.whole(algorithm, request.problem, carrier)
    share = keys.ranks.share(all_nodes, topology)
    saved = keys.saved(request.checkpoint, facts, share)
    return Prepared(
        request=request,
        delta=delta,
        plan=plan,
        ranks=keys.ranks,
        seeded=keys.seeded,
        run=_rounds(request, keys.ranks, share, plan, meters, saved),
        saved=saved,
    )


def _delta(request: RunRequest) -> float:
    """Return the delta of the report: the argument, else of the budget, else of the algorithm."""
    delta = request.delta
    if delta is None and request.budget is not None:
        delta = request.budget.delta
    if delta is None:
        delta = getattr(request.algorithm, "delta", 0.0)
    return probability("delta", delta, one=False)


def _plan(request: RunRequest) -> Plan:
    """Return the planned releases, within a budget if there is one."""
    if request.budget is None:
        return request.algorithm.plan(request.rounds)
    return request.budget.require(request.algorithm, request.rounds, request.problem)


def _identity(request: RunRequest, plan: Plan) -> Identity:
    """Return the facts that must be the same in all processes and in a resumed run."""
    facts_of_releases = identity(
        request.algorithm, request.problem, request.topology, request.network, request.rounds
    )
    return {
        "rounds": request.rounds,
        "nodes": request.problem.nodes,
        "every": request.every,
        **facts_of_releases,
        "metrics": request.metrics.names,
        "plan": crc32(repr(plan.releases).encode()),
    }


class _Keys:
    """Key of a run, and facts about keys that all processes exchange in one order.

    Attributes
    ----------
    ranks
        Processes of the run.
    seeded
        True if any process has a seeded key.
    run_key
        Key of this run: a key that is not seeded is mixed with fresh bits, the *salt*.
    """

    def __init__(self, request: RunRequest) -> None:
        ranks = request.ranks or OneProcess()
        key = Key.generate() if request.key is None else request.key
        self.ranks = ranks
        self.seeded = any(ranks.everyone(key.is_seeded))
        self._fingerprints = ranks.everyone(fingerprint(key))
        root_salt = ""
        if ranks.is_root:
            root_salt = _salt(request.checkpoint)
        self._salt = ranks.everyone(root_salt)[0]
        self.run_key = key
        if not key.is_seeded:
            self.run_key = key.derive(bytes.fromhex(self._salt))

    def whole(self, algorithm: AnyAlgorithm, problem: Problem, carrier: Carrier) -> Share:
        """Return the share of one process that runs all nodes."""
        return Share(
            algorithm=algorithm,
            problem=problem,
            carrier=carrier,
            key=self.run_key,
            noise_key=self.run_key,
            pair_key=self.run_key,
            total=problem.nodes,
        )

    def saved(
        self, checkpoint: Checkpoint | None, facts: Identity, share: Share
    ) -> SavedRun | None:
        """Return the checkpoint of a run with these facts; None if none is kept."""
        if checkpoint is None:
            return None
        if len(set(self._fingerprints)) > 1:
            # Nodes must stay on their ranks: on another one they would draw new noise for a value.
            facts["nodes of each rank"] = digest(self.ranks.everyone(share.nodes))
        return SavedRun(checkpoint, facts, self._fingerprints, self._salt)


def _rounds(
    request: RunRequest,
    ranks: Engine,
    share: Share,
    plan: Plan,
    meters: list[Metric],
    saved: SavedRun | None,
) -> Rounds:
    """Return the rounds of this process, from the first one or from a checkpoint on."""
    ledger = Ledger(plan, request.budget, nodes=request.problem.nodes)
    with ranks.guard(lambda: None):  # a failure here leaves nothing to save
        start = Progress(state=share.algorithm.init(share.problem, share.key))
        ranks.agree()  # raises an error if another process failed
        channel = Channel(
            share.carrier, share.noise_key, ledger, nodes=share.nodes, pair_key=share.pair_key
        )
        run = Rounds(
            share=share,
            channel=channel,
            engine=ranks,
            meters=meters if share.nodes is None else [OnRoot(ranks, share, meters)],
            every=request.every,
            last=request.rounds,
            callback=request.metrics.callback if ranks.is_root else None,
            progress=start,
        )
        if saved is not None:
            run.recall(_resumed(saved, plan, run))
        ranks.agree()
    return run


def _salt(checkpoint: Checkpoint | None) -> str:
    """Return the salt of a run's key in hexadecimal: 256 new bits, or the salt of a resumed run."""
    saved_salt = None
    if checkpoint is not None:
        saved_salt = salt_in(checkpoint.path)
    if saved_salt is None:
        return secrets.token_hex(32)
    return saved_salt


def _with_failures(budget: Budget, network: Network | None, key: Key) -> Budget:
    """Return the budget with the failures of this run's network in its view, if it has one."""
    view = budget.view
    if network is None or view is None or isinstance(view, Everybody | EverybodyButPartners):
        return budget
    realized = RealizedNetwork(view.topology, network, key)
    return replace(budget, view=replace(view, topology=realized))


def _check_same(ranks: Engine, facts: Identity) -> None:
    """Fail unless all processes have the same facts."""
    facts_of_all = ranks.everyone(facts)
    for name, first in facts_of_all[0].items():
        values = [facts_of_process[name] for facts_of_process in facts_of_all]
        if any(value != first for value in values):
            fail(name, "the same on all ranks", ", ".join(map(str, values)))


def _resumed(saved: SavedRun, plan: Plan, run: Rounds) -> Progress:
    """Return this process's part of the progress in the file, which is created if missing."""
    ranks = run.engine
    start = gathered(run.resumable_progress(), ranks, run.share)
    progress_of_all = saved.resume(start, plan) if ranks.is_root else None
    ranks.agree()
    return scattered(progress_of_all, ranks, run.share)
