"""The rows of the benchmark: each method with its noise and steps for a task and a budget."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import sqrt
from typing import TypeAlias

import numpy as np

import dpmesh.accounting as accounting
import dpmesh.topology as topology
from dpmesh.algorithms import (
    ClientUpdates,
    FederatedLearning,
    GradientDescent,
    GradientTracking,
    OnlineLearning,
    PushSum,
    QuantizedGossip,
    SecureGossip,
    WithoutReplacement,
    WithReplacement,
)
from dpmesh.algorithms.allocation import BatchSampling
from dpmesh.algorithms.controllers import AlwaysGlobal
from dpmesh.algorithms.denoisers import Denoiser, Identity, LaplacianSmoothing
from dpmesh.algorithms.federated_server import Average, ServerMomentum
from dpmesh.algorithms.first_stage import FirstStage
from dpmesh.defaults import Method, Sizes, choose, network, step_size
from dpmesh.defaults.rule import CONSTANTS, LITTLE_NOISE, MOST_STEPS, STEPS
from dpmesh.keys import Key
from dpmesh.noise import Quantizer, correlated
from dpmesh.privacy.views import OneNode
from dpmesh.problems import LinearProblem
from dpmesh_papers.benchmark import correlated_noise
from dpmesh_papers.benchmark.one_message import one_message
from dpmesh_papers.benchmark.setting import (
    ALL_MESSAGES_PUBLIC,
    CLIPPING_NORM,
    COHORT,
    DIRECTED_DEGREE,
    GLOBAL_SHARE,
    KEEP,
    MIXINGS,
    ONE_NEIGHBOUR_COLLUDES,
    ONE_PARTNER_COLLUDES,
    ONE_SITE_COLLUDES,
    ONLINE_ROUNDS,
    PASSES,
    SINGLE_NODES,
    THIRD_OF_SITES_COLLUDES,
    TRUSTED_SERVER,
    VISITS,
    CannotRun,
    MethodRow,
    Setting,
    Trial,
)
from dpmesh_papers.gradient_perturbation import ChocoSGD, GradientPerturbation

PATH = CONSTANTS["classification"]
DECAY = 0.9
"""Decay of the rows with momentum, as `dpmesh.defaults.choose` has it."""
LAST_TENTH = Average(since=STEPS - STEPS // 10 + 1)
"""Average of the rows with momentum, as `dpmesh.defaults.choose` has it."""

RULE = (
    "All methods of a split learn from the same records, with the same optimizer:\n\n"
    "- gradient descent with a constant learning rate; the result is the model of the last step;\n"
    f"- the *path*, which is the sum of the learning rates of all steps, is at most "
    f"{PATH.longest:g}; it is shorter where the noise in a record's score would exceed a standard "
    f"deviation of {PATH.noise:g}; a learning rate is at most {PATH.longest / STEPS:g};\n"
    f"- {STEPS} steps; with noise in time {STEPS // PASSES} passes over {PASSES} batches; online "
    f"learning has {ONLINE_ROUNDS} steps, since its noise grows with their number; SGD with "
    f"replacement visits each record {VISITS} times, with {PASSES} batches a visit.\n\n"
    f"A method with anything else has a row of its own. Momentum is {DECAY:g}, applied to the "
    f"released sums; its path is {1 / (1 - DECAY):.0f} times as long, and its result is the mean "
    f"of the last tenth of the models. *Gossip, up to {MOST_STEPS} steps* multiplies the steps and "
    f"the path by one factor, while the noise in a score stays below {LITTLE_NOISE:g}. The "
    "names of other rows say what is added:\n\n"
    "- *secure aggregation*: each step uses a sum over all sites, and no site's part is revealed;\n"
    "- *private centering*: a noisy mean is subtracted from all records;\n"
    "- *features*: more features than the columns of the task, by the default rule;\n"
    "- *noise in time*: temporally correlated noise; *noise between partners*: pairwise-cancelling "
    "noise;\n"
    "- *allocated*: random allocation of each record to one secret round.\n\n"
    "A cell without a number stands for a method that the task does not allow. The reason is below "
    "the table; *the rule* is that of dpmesh.defaults.\n\n"
    "The noise follows from the privacy budget. Steps and learning rates follow from public "
    "numbers alone: records, nodes, epsilon and delta (dpmesh.defaults). The constants of this "
    "rule were chosen on the tables of digits, breast cancer and Covertype, on other splits. No "
    "constant was chosen on MNIST, RCV1, Shakespeare, marriages or voters. Methods that send one "
    "message have no constants. A row whose constants were chosen in another way states it in its "
    "name. No choice used a test record."
)


def _chosen(
    setting: Setting,
    method: Method,
    problem: LinearProblem | None = None,
    colluding: int = 1,
    longer: bool = False,
    staged: bool = False,
) -> Trial:
    """Return a row of the default rule.

    Parameters
    ----------
    setting
        The problem and the budget.
    method
        As in `dpmesh.defaults.choose`.
    problem
        Learned in place of the setting's.
    colluding
        Number of sites that may collude with the server.
    longer
        If true, the rule's longer path, which needs momentum or more steps.
    staged
        If true, private centering first.

    Raises
    ------
    CannotRun
        If the rule has no such row for the problem.
    """
    if problem is None:
        problem = setting.problem
    sizes = Sizes.of(problem)
    if not staged:
        sizes = replace(sizes, features=0)
    try:
        choice = choose(
            sizes,
            epsilon=setting.epsilon,
            delta=setting.delta,
            algorithm=method,
            linear=longer,  # the rule has the plain path for networks
            colluding=colluding,
            rounds=STEPS if method == "secure" else None,
            key=Key.seeded(0),
        )
    except ValueError as error:
        raise CannotRun(str(error)) from error
    algorithm = choice.algorithm
    if staged and not isinstance(algorithm, FirstStage):
        raise CannotRun("the rule has no private centering for so few records, or sparse ones")
    if method == "secure" and not longer:
        algorithm = replace(algorithm, average=None)
    return Trial(algorithm, problem, choice.topology, choice.rounds)


def _central(setting: Setting, longer: bool = False) -> Trial:
    """Return central DP-SGD: a secure sum of two halves, none of which may collude.

    It has the noise of one server that is trusted with all records.
    """
    problem = replace(
        setting.problem, partition=tuple(np.array_split(setting.problem.full_batches[1], 2))
    )
    return _chosen(setting, "secure", problem, colluding=0, longer=longer)


def _featured(setting: Setting) -> Trial:
    """Return secure aggregation with momentum, private centering, and more features."""
    if setting.featured is None:
        raise CannotRun("the rule takes the columns of this task as they are")
    return _chosen(setting, "secure", setting.featured(), longer=True, staged=True)


def _secure_third(setting: Setting) -> Trial:
    """Return secure aggregation with noise for a third of the sites that collude."""
    return _chosen(setting, "secure", colluding=max(1, setting.problem.nodes // 3))


def _on_a_ring(setting: Setting) -> Trial:
    """Return gradient descent by gossip on a ring."""
    return _chosen(setting, "gossip")._replace(topology=topology.ring(setting.problem.nodes))


def _muffliato(setting: Setting) -> Trial:
    """Return gradient descent on a ring that mixes each message `MIXINGS` times."""
    trial = _on_a_ring(setting)
    assert isinstance(trial.algorithm, GradientDescent)
    return trial._replace(algorithm=replace(trial.algorithm, mixings=MIXINGS))


def _push_sum(setting: Setting) -> Trial:
    """Return push-sum where each node sends to two others at random in each round."""
    nodes = setting.problem.nodes
    degree = min(DIRECTED_DEGREE, nodes - 1)
    links = topology.random_directed(nodes, degree, key=Key.seeded(0))
    return _tuned_descent(setting, PushSum, links)


def _tracking(setting: Setting) -> Trial:
    links = network(setting.problem.nodes, key=Key.seeded(0))
    return _tuned_descent(setting, GradientTracking, links)


Descent: TypeAlias = GradientDescent | PushSum | GradientTracking


def full_batch_descent(setting: Setting, kind: type[Descent], rounds: int) -> Descent:
    """Return gradient descent of a class on all records of each node, with the budget's noise.

    Its step size is 1.
    """

    def with_noise(noise_to_sensitivity: float) -> Descent:
        return kind(
            records=setting.fewest_records,
            noise_multiplier=2 * noise_to_sensitivity,
            step_size=1.0,
            clipping_norm=CLIPPING_NORM,
        )

    return with_noise(setting.budget.calibrate(with_noise, rounds, setting.problem))


def noise_of_round(algorithm: Descent, problem: LinearProblem) -> float:
    """Return the standard deviation of a round's noise in each parameter, at step size 1."""
    return float(algorithm.mechanism.noise_scale(algorithm.sensitivity(1), problem.dim))


def _tuned_descent(
    setting: Setting, kind: type[PushSum | GradientTracking], links: topology.Topology
) -> Trial:
    """Return full-batch gradient descent of this class, with noise and step size by the rule."""
    problem = setting.problem
    rounds = STEPS + kind.first_noisy_round
    algorithm = full_batch_descent(setting, kind, rounds)
    noise_of_mean = sqrt(STEPS / problem.nodes) * noise_of_round(algorithm, problem)
    algorithm = replace(algorithm, step_size=step_size(noise_of_mean))
    return Trial(algorithm, problem, links, rounds)


def _meetings(setting: Setting) -> Trial:
    """Return gradient descent in which pairs of nodes average, with noise against any one node."""
    problem = setting.problem
    constants = problem.constants()
    links = topology.meetings(problem.nodes, key=Key.seeded(0))
    budget = replace(setting.budget, view=OneNode(topology=links))
    rounds = STEPS + 1
    # the proof needs that no gradient is clipped
    clipping_norm = 1.001 * constants.loss_lipschitz

    def with_noise(noise_to_sensitivity: float) -> GradientDescent:
        return GradientDescent(
            records=setting.fewest_records,
            noise_multiplier=2 * noise_to_sensitivity,
            step_size=1.0,
            clipping_norm=clipping_norm,
        )

    ratio = budget.calibrate(with_noise, rounds, problem)
    noise_of_mean = sqrt(STEPS / problem.nodes) * ratio * 2 * clipping_norm / setting.fewest_records
    # longer steps may drive models apart
    step = min(step_size(noise_of_mean), 2 / constants.smoothness)
    algorithm = replace(with_noise(ratio), step_size=step)
    return Trial(algorithm, problem, links, rounds, budget)


def _federated(setting: Setting, smoothing: float = 0.0, momentum: float = 0.0) -> Trial:
    """Return federated learning of clients, each of which takes one step on all of its records.

    Where the unit is a record, each record is a client.
    """
    problem = setting.problem
    rounds = STEPS
    if setting.unit == "record":
        all_records = problem.full_batches[1]
        problem = replace(problem, partition=tuple(all_records[:, np.newaxis]))
    cohort = max(1, round(COHORT * problem.nodes))
    denoiser: Denoiser = Identity()
    if smoothing:
        denoiser = LaplacianSmoothing(smoothing)
    optimizer = None
    average = None
    if momentum:
        optimizer = ServerMomentum(momentum)
        average = LAST_TENTH
    updates = ClientUpdates(
        clients=problem.nodes,
        sampling_rate=COHORT,
        clipping_norm=CLIPPING_NORM,
        sampling="uniform",
        batch_size=int(problem.records.max()),
        steps=1,
        step_size=1.0,
    )

    def with_noise(noise_to_sensitivity: float) -> FederatedLearning:
        return FederatedLearning(
            updates,
            noise_multiplier=2 * noise_to_sensitivity,
            step_size=1.0,
            denoiser=denoiser,
            optimizer=optimizer,
            average=average,
        )

    ratio = setting.budget.calibrate(with_noise, rounds)
    noise = sqrt(rounds) * ratio * 2 * CLIPPING_NORM / cohort
    step = step_size(noise / (1 - momentum), rounds=rounds)
    return Trial(replace(with_noise(ratio), step_size=step), problem, None, rounds)


def _online(setting: Setting, sampling: BatchSampling = "arrival") -> Trial:
    """Return online learning, which uses each record once; with allocation, in a secret round."""
    rounds = min(ONLINE_ROUNDS, setting.fewest_records)
    batch = setting.fewest_records // rounds
    allocated_records = None
    if sampling == "allocation":
        allocated_records = rounds * batch
    plain = OnlineLearning(
        epsilon=setting.epsilon,
        delta=setting.delta,
        step_size=1.0,
        radius=1e6,
        clipping_norm=CLIPPING_NORM,
        batch_size=batch,
        projection="none",
        sampling=sampling,
        records=allocated_records,
    )
    noise = sqrt(rounds / setting.problem.nodes) * plain.noise_std(1, setting.problem.dim)
    algorithm = replace(plain, step_size=step_size(noise, rounds=rounds))
    if sampling == "allocation":
        rounds += 1  # a last round sends the step of the last batch
    links = network(setting.problem.nodes, key=Key.seeded(0))
    return Trial(algorithm, setting.problem, links, rounds)


def _quantized(setting: Setting) -> Trial:
    """Return quantized gossip whose quantizer has the noise's deviation as its step."""
    problem = setting.problem
    rounds = STEPS + 1
    plain = QuantizedGossip(
        step_size=1.0,
        consensus_step_size=1.0,
        sample_size=setting.fewest_records,
        noise_std=None,
        compressor=None,
        clipping_norm=CLIPPING_NORM,
        mode="public_point",
    )
    sensitivity = 2 * CLIPPING_NORM / setting.fewest_records
    ratio = setting.budget.calibrate(
        lambda ratio: replace(plain, noise_std=ratio * sensitivity), rounds
    )
    noise_std = ratio * sensitivity
    step = step_size(sqrt(rounds / problem.nodes) * ratio * sensitivity, rounds=rounds)
    algorithm = replace(
        plain, step_size=step, noise_std=noise_std * step, compressor=Quantizer(noise_std * step)
    )
    return Trial(algorithm, problem, network(problem.nodes, key=Key.seeded(0)), rounds)


def _secure_gossip(setting: Setting) -> Trial:
    """Return gradient descent in which each node receives the secure sum of its neighbours."""
    problem = setting.problem
    rounds = STEPS
    links = network(problem.nodes, key=Key.seeded(0))
    plain = SecureGossip(
        topology=links,
        dim=problem.dim,
        records=problem.full_batches[1].size,
        noise_multiplier=2.0,
        clipping_norm=CLIPPING_NORM,
    )
    multiplier = setting.budget.calibrate(
        lambda multiplier: replace(plain, noise_multiplier=multiplier), rounds, guess=2.0
    )
    shares = problem.nodes * (1 - plain.colluding / int(links.mixing_matrix.degrees.min()))
    noise_scale = plain.noise_to_sensitivity_at(multiplier) * plain.sensitivity(0).bound
    step = step_size(sqrt(rounds / shares) * noise_scale, rounds=rounds)
    algorithm = replace(plain, noise_multiplier=multiplier, step_size=step)
    return Trial(algorithm, problem, None, rounds)


def _choco(setting: Setting) -> Trial:
    """Return CHOCO-SGD on full batches; its consensus step size is the share of kept numbers."""
    problem = setting.problem
    rounds = STEPS
    plain = GradientPerturbation(
        step_size=1.0,
        sample_size=setting.fewest_records,
        records=setting.fewest_records,
        noise_to_sensitivity=1.0,
        clipping_norm=CLIPPING_NORM,
    )
    ratio = setting.budget.calibrate(
        lambda ratio: replace(plain, noise_to_sensitivity=ratio), rounds
    )
    noise = sqrt(rounds / problem.nodes) * ratio * plain.sensitivity(0).bound
    choco = ChocoSGD(
        step_size=step_size(noise, rounds=rounds),
        sample_size=plain.sample_size,
        records=plain.records,
        noise_to_sensitivity=ratio,
        clipping_norm=plain.clipping_norm,
        keep=KEEP,
        consensus_step_size=KEEP,
    )
    return Trial(choco, problem, network(problem.nodes, key=Key.seeded(0)), rounds)


def _without_replacement(setting: Setting, sampling: BatchSampling = "arrival") -> Trial:
    """Return SGD without replacement; with allocation, all updates are global.

    The more releases there are, the less noise has each of them under random allocation.
    """
    problem = setting.problem
    rounds = min(STEPS, setting.fewest_records)
    batch = setting.fewest_records // rounds
    plain = WithoutReplacement(epsilon=setting.epsilon, delta=setting.delta, batch_size=batch)
    share = GLOBAL_SHARE
    if sampling == "allocation":
        plain = replace(
            plain,
            controller=AlwaysGlobal(),
            decisions="together",
            sampling=sampling,
            records=rounds * batch,
        )
        share = 1.0
    return Trial(without_replacement_by_rule(plain, problem, rounds, share), problem, None, rounds)


def without_replacement_by_rule(
    algorithm: WithoutReplacement, problem: LinearProblem, rounds: int, share: float
) -> WithoutReplacement:
    """Return the algorithm with the rule's step size, at most 1 / (2 smoothness) as in Lemma 4.

    A release averages the global model with the node's local model, and so keeps part of the noise
    of earlier releases. The rule gets the standard deviation of both noises together.

    Parameters
    ----------
    algorithm, problem, rounds
        As in `dpmesh.simulate`.
    share
        Part of the updates that are global.
    """
    constants = problem.model_constants()
    releases = share * problem.nodes * rounds
    gradient_bound = 2 * constants.loss_lipschitz / algorithm.batch_size
    sensitivity = gradient_bound * algorithm.sensitivity(0).bound  # of a release, at step size 1
    release_noise = algorithm.mechanism.noise_to_sensitivity * sensitivity
    earlier_noise = sqrt(releases) * 2 / (problem.nodes + 1)  # relative to a release's
    step = step_size(release_noise * sqrt(1 + earlier_noise**2), rounds=2 * rounds)
    return replace(algorithm, step_size=min(step, 1 / (2 * constants.smoothness)))


def noisy_sgd_with_replacement(setting: Setting) -> WithReplacement:
    """Return SGD with replacement with the noise of the budget, on sites of equal size.

    Its step size is the algorithm's default.
    """
    records = setting.fewest_records
    batch = max(1, records // PASSES)
    ratio = accounting.fixed_size_gaussian_noise_to_sensitivity(
        target_epsilon=setting.epsilon,
        target_delta=setting.delta,
        sampling_rate=batch / records,
        neighboring_relation="replace_one",
        count=VISITS * records // batch,
    )
    return WithReplacement(
        nodes=setting.problem.nodes,
        records=records,
        noise_multiplier=2 * ratio,
        batch_size=batch,
        visits=VISITS,
    )


def rounds_with_replacement(algorithm: WithReplacement) -> int:
    """Return the number of rounds in which all nodes have had all of their turns."""
    return algorithm.nodes * algorithm.turns_of_a_node


def _with_replacement(setting: Setting) -> Trial:
    problem = setting.equal_sites
    algorithm = with_replacement_by_rule(noisy_sgd_with_replacement(setting), problem)
    return Trial(algorithm, problem, None, rounds_with_replacement(algorithm))


def with_replacement_by_rule(algorithm: WithReplacement, problem: LinearProblem) -> WithReplacement:
    """Return SGD with replacement with the learning rate of `dpmesh.defaults.step_size`.

    The algorithm must have noise, and it runs for all turns of all nodes.
    """
    rounds = rounds_with_replacement(algorithm)
    sensitivity = 2 * problem.model_constants().loss_lipschitz / algorithm.batch_size
    assert algorithm.noise_to_sensitivity is not None
    noise = sqrt(rounds) * algorithm.noise_to_sensitivity * sensitivity
    return replace(algorithm, step_size=step_size(noise, rounds=rounds))


def _online_correlated(setting: Setting, kind: correlated_noise.Strategy) -> Trial:
    return correlated_noise.online_learning(setting, _online(setting), kind)


_secure = partial(_chosen, method="secure")
_gossip = partial(_chosen, method="gossip")
_descent = correlated_noise.gradient_descent
_in_time = correlated.InTime
_between = correlated.BetweenPartners

ROWS = tuple(
    MethodRow(name=name, trust=trust, trial=trial)
    for name, trust, trial in (
        ("central DP-SGD, all records in a batch", TRUSTED_SERVER, _central),
        ("central DP-SGD, momentum", TRUSTED_SERVER, partial(_central, longer=True)),
        (
            "central DP-SGD, noise in time",
            TRUSTED_SERVER,
            partial(_descent, kind=_in_time, server=True),
        ),
        ("federated", TRUSTED_SERVER, _federated),
        ("federated, momentum", TRUSTED_SERVER, partial(_federated, momentum=DECAY)),
        ("federated, Laplacian smoothing", TRUSTED_SERVER, partial(_federated, smoothing=1.0)),
        ("secure aggregation, 1 site may collude", ONE_SITE_COLLUDES, _secure),
        ("secure aggregation, a third may collude", THIRD_OF_SITES_COLLUDES, _secure_third),
        ("secure aggregation, momentum", ONE_SITE_COLLUDES, partial(_secure, longer=True)),
        (
            "secure aggregation, momentum, private centering",
            ONE_SITE_COLLUDES,
            partial(_secure, longer=True, staged=True),
        ),
        ("secure aggregation, momentum, private centering, features", ONE_SITE_COLLUDES, _featured),
        ("gradient descent by gossip", ALL_MESSAGES_PUBLIC, _gossip),
        ("gossip, up to 400 steps", ALL_MESSAGES_PUBLIC, partial(_gossip, longer=True)),
        (
            "gossip, up to 400 steps, private centering",
            ALL_MESSAGES_PUBLIC,
            partial(_gossip, longer=True, staged=True),
        ),
        ("gradient descent on a ring", ALL_MESSAGES_PUBLIC, _on_a_ring),
        ("Muffliato on a ring, 8 mixings", ALL_MESSAGES_PUBLIC, _muffliato),
        ("push-sum, 2 receivers at random", ALL_MESSAGES_PUBLIC, _push_sum),
        ("gradient tracking", ALL_MESSAGES_PUBLIC, _tracking),
        ("gradient descent at meetings", SINGLE_NODES, _meetings),
        ("gossip, noise in time", ALL_MESSAGES_PUBLIC, partial(_descent, kind=_in_time)),
        ("gossip, noise between partners", ONE_PARTNER_COLLUDES, partial(_descent, kind=_between)),
        ("secure gossip, 1 neighbour may collude", ONE_NEIGHBOUR_COLLUDES, _secure_gossip),
        ("quantized gossip", ALL_MESSAGES_PUBLIC, _quantized),
        ("CHOCO-SGD, a quarter of each message", ALL_MESSAGES_PUBLIC, _choco),
        ("online learning", ALL_MESSAGES_PUBLIC, _online),
        (
            "online learning, allocated",
            ALL_MESSAGES_PUBLIC,
            partial(_online, sampling="allocation"),
        ),
        (
            "online learning, noise in time",
            ALL_MESSAGES_PUBLIC,
            partial(_online_correlated, kind=_in_time),
        ),
        (
            "online learning, noise in time and between partners",
            ONE_PARTNER_COLLUDES,
            partial(_online_correlated, kind=correlated.Both),
        ),
        ("SGD without replacement", ALL_MESSAGES_PUBLIC, _without_replacement),
        (
            "SGD without replacement, allocated",
            ALL_MESSAGES_PUBLIC,
            partial(_without_replacement, sampling="allocation"),
        ),
        ("SGD with replacement", ALL_MESSAGES_PUBLIC, _with_replacement),
    )
)
ROWS += tuple(
    MethodRow(
        name=f"one message, {sums}{', secure aggregation' * secure}",
        trust=ONE_SITE_COLLUDES if secure else ALL_MESSAGES_PUBLIC,
        trial=partial(one_message, second_moments=second_moments, secure=secure),
    )
    for secure in (False, True)
    for sums, second_moments in (("class sums", False), ("class sums and second moments", True))
)
"""All methods that are learned with privacy among nodes or at a server."""
