"""The settings of the four papers as tasks of the benchmark: data, nodes, records and delta.

All rows of the benchmark run on each task, with one rule for noise and steps. A task's extra rows
have the paper's loss, network or schedules; where a constant of theirs was chosen on the same data,
the name of the row says so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np

import dpmesh.topology as topology
from dpmesh.algorithms import GradientDescent, WithoutReplacement
from dpmesh.algorithms.controllers import AlwaysGlobal
from dpmesh.algorithms.denoisers import Denoiser, Identity, LaplacianSmoothing
from dpmesh.data import Dataset, iid, mnist, rcv1, unit_norm
from dpmesh.data.preprocessing import with_constant
from dpmesh.defaults import network
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.schedules import ExponentialDecay
from dpmesh_papers import federated, quantized_comparison
from dpmesh_papers.allocated import ALLOCATION, DOCUMENTS, NOISE, longest_path_batch, online_by_rule
from dpmesh_papers.benchmark.methods import (
    PATH,
    full_batch_descent,
    noise_of_round,
    rounds_with_replacement,
    with_replacement_by_rule,
    without_replacement_by_rule,
)
from dpmesh_papers.benchmark.setting import (
    ALL_MESSAGES_PUBLIC,
    TRUSTED_SERVER,
    CannotRun,
    MethodRow,
    Setting,
    Trial,
)
from dpmesh_papers.benchmark.task import Task, in_double_precision
from dpmesh_papers.online_runs import MOST_NODES, changing_graph
from dpmesh_papers.quantized import NODES as QUANTIZED_NODES
from dpmesh_papers.without_replacement_setting import (
    BATCH_SIZE,
    PUBLIC_RECORDS,
    ExperimentData,
    dealt_out,
    mnist_setting,
    with_replacement,
)
from dpmesh_papers.without_replacement_setting import DELTA as IMAGES_DELTA

IMAGE_NODES = 10
"""Nodes that share the images of the without-replacement paper's Figure 3."""
QUANTIZED_ROUNDS = 200
"""Rounds of the quantized paper's Figure 4."""
PIXELS = 28 * 28
FEW_STEPS = 10
"""Steps of the row that takes few."""
SMOOTHING = 1.0
"""The least of the paper's three factors, so that none is chosen on test images."""
CLIENTS = federated.CLIENTS["uniform"]
"""Clients of the federated paper's Table 2, with uniform sampling."""
EPSILONS = (1.0,)
"""Epsilons of these tasks, but for the federated paper's."""
SPLITS = 5
"""Splits of these tasks, which take long."""


@cache
def _images_setting(public_components: bool) -> ExperimentData:
    return mnist_setting(public_components=public_components)


def _images(key: Key, most_records: int | None, *, public_components: bool) -> LinearProblem:
    """Return the images of Figure 3 of the without-replacement paper, as softmax regression."""
    setting = _images_setting(public_components)
    if most_records is not None:
        order = generator(key, Purpose.SAMPLE).permutation(setting.train.records)
        chosen = order[:most_records]
        setting = replace(setting, train=setting.train.take(chosen))
    dealt = dealt_out(setting, IMAGE_NODES, "convex", key)
    train = in_double_precision(dealt.train)
    test = in_double_precision(setting.test)
    return LinearProblem(train, dealt.partition, "softmax", test=test, classes=setting.classes)


def _one_vs_all(problem: LinearProblem) -> LinearProblem:
    """Return a logistic regression of each class against all others."""
    return replace(problem, loss="logistic", outline=None)


def _algorithm_1(setting: Setting) -> Trial:
    """Return Algorithm 1 with random allocation, all updates global, and the rule's step."""
    problem = _one_vs_all(setting.problem)
    algorithm = WithoutReplacement(
        epsilon=setting.epsilon,
        delta=setting.delta,
        models=problem.models,
        batch_size=BATCH_SIZE,
        controller=AlwaysGlobal(),
        decisions="together",
        sampling=ALLOCATION,
        records=setting.fewest_records,
    )
    rounds = problem.rounds(BATCH_SIZE)
    return Trial(
        without_replacement_by_rule(algorithm, problem, rounds, share=1.0), problem, None, rounds
    )


def _papers_baseline(setting: Setting) -> Trial:
    """Return the paper's SGD with replacement, with exact noise and the rule's step."""
    problem = _one_vs_all(setting.equal_sites)
    algorithm = with_replacement(problem, "proved", setting.epsilon)
    algorithm = with_replacement_by_rule(algorithm, problem)
    return Trial(algorithm, problem, None, rounds_with_replacement(algorithm))


def _documents(key: Key, most_records: int | None) -> LinearProblem:
    """Return the documents of Table 1 of the online paper, as logistic regression."""
    train, test = _reuters()
    documents_of_node = min(DOCUMENTS, most_records or DOCUMENTS) // MOST_NODES
    count = documents_of_node * MOST_NODES
    chosen = generator(key, Purpose.SPLIT).permutation(train.records)[:count]
    parts = tuple(chosen.reshape(MOST_NODES, -1))
    return LinearProblem(train, parts, "logistic", test=test)


@cache
def _reuters() -> tuple[Dataset, Dataset]:
    train, test = (unit_norm(in_double_precision(rcv1(part))) for part in ("train", "test"))
    return train, test


def _online(setting: Setting, *, noise_in_score: float) -> Trial:
    """Return online learning with random allocation, the paper's hinge loss and network."""
    problem = replace(setting.problem, loss="hinge")
    nodes = problem.nodes
    documents = setting.fewest_records * problem.nodes
    batch = longest_path_batch(ALLOCATION, nodes, epsilon=setting.epsilon, documents=documents)
    algorithm = online_by_rule(
        ALLOCATION,
        nodes,
        batch,
        epsilon=setting.epsilon,
        documents=documents,
        noise_in_score=noise_in_score,
    ).algorithm
    rounds = algorithm.most_rounds(problem)
    return Trial(algorithm, problem, changing_graph(nodes), rounds)


def _few_steps(setting: Setting) -> Trial:
    """Return ten full-batch steps by gossip whose noise in a score is that of `NOISE`."""
    problem = setting.problem
    rounds = FEW_STEPS + 1
    plain = full_batch_descent(setting, GradientDescent, rounds)
    noise_of_mean = noise_of_round(plain, problem) * np.sqrt(FEW_STEPS / problem.nodes)
    step = min(NOISE / noise_of_mean, PATH.longest / FEW_STEPS)
    links = network(problem.nodes, key=Key.seeded(0))
    return Trial(replace(plain, step_size=step), problem, links, rounds)


def _quantized_images(key: Key, most_records: int | None) -> LinearProblem:
    """Return the regression of Figure 4 of the quantized paper."""
    train, test = (unit_norm(in_double_precision(mnist(part))) for part in ("train", "test"))
    draw = generator(key, Purpose.SPLIT)
    train = train.take(draw.permutation(train.records)[:most_records])
    parts = iid(train, QUANTIZED_NODES, draw, equal_sizes=True)
    return LinearProblem(train, parts, "softmax", test=test, classes=10)


def _quantized(setting: Setting, *, name: str) -> Trial:
    """Return an algorithm of Figure 4 with the schedules of the study, on a ring."""
    if setting.fewest_records != quantized_comparison.RECORDS:
        raise CannotRun(f"its schedules are for {quantized_comparison.RECORDS:,} records a node")
    task = quantized_comparison.TASKS["regression"]
    contender = quantized_comparison.contenders(QUANTIZED_ROUNDS, task)[name]
    algorithm = contender.at_epsilon(setting.epsilon)
    links = topology.ring(setting.problem.nodes)
    return Trial(algorithm, setting.problem, links, QUANTIZED_ROUNDS)


def _clients(key: Key, most_records: int | None) -> LinearProblem:
    """Return the clients of Table 2 of the federated paper, 50 images at each."""
    images, test_images = mnist("train"), mnist("test")
    draw = generator(key, Purpose.SPLIT)
    count = min(federated.TRAINING_RECORDS, most_records or federated.TRAINING_RECORDS)
    images = images.take(draw.permutation(images.records)[:count])
    train, test = (
        unit_norm(with_constant(unit_norm(in_double_precision(part))))
        for part in (images, test_images)
    )
    parts = iid(train, CLIENTS, draw, equal_sizes=True)
    return LinearProblem(train, parts, "softmax", test=test, classes=10)


def _table_2(setting: Setting, *, smoothing: float) -> Trial:
    """Return DP-Fed or DP-Fed-LS with the paper's rounds and local epochs, at exact noise.

    Records have norm 1 here. The paper's images have a mean squared norm of their number of pixels,
    by which its learning rate is multiplied.
    """
    noise = federated.tight_noise_to_sensitivity(
        "uniform", setting.epsilon, setting.delta, federated.ROUNDS
    )
    rate = ExponentialDecay(scale=0.1 * PIXELS, rate=0.99)
    updates = replace(federated.client_updates("uniform"), step_size=rate)
    denoiser: Denoiser = Identity()
    if smoothing:
        denoiser = LaplacianSmoothing(smoothing)
    algorithm = federated.algorithm_of("uniform", noise, denoiser, updates)
    return Trial(algorithm, setting.problem, None, federated.ROUNDS)


_CHOSEN = f"noise {NOISE:g} in a score, chosen on RCV1's own training documents"

_IMAGE_ROWS = (
    MethodRow(
        name="Algorithm 1, logistic one-vs-all, random allocation",
        trust=ALL_MESSAGES_PUBLIC,
        trial=_algorithm_1,
    ),
    MethodRow(
        name="the paper's SGD with replacement, logistic one-vs-all",
        trust=ALL_MESSAGES_PUBLIC,
        trial=_papers_baseline,
    ),
)
_DOCUMENT_ROWS = (
    MethodRow(
        name="online learning, hinge, random allocation",
        trust=ALL_MESSAGES_PUBLIC,
        trial=partial(_online, noise_in_score=PATH.noise),
    ),
    MethodRow(
        name=f"online learning, hinge, random allocation, {_CHOSEN}",
        trust=ALL_MESSAGES_PUBLIC,
        trial=partial(_online, noise_in_score=NOISE),
    ),
    MethodRow(
        name=f"gossip, {FEW_STEPS} steps, {_CHOSEN}", trust=ALL_MESSAGES_PUBLIC, trial=_few_steps
    ),
)
_QUANTIZED_ROWS = tuple(
    MethodRow(
        name=f"Figure 4 on a ring: {name}",
        trust=ALL_MESSAGES_PUBLIC,
        trial=partial(_quantized, name=name),
    )
    for name in ("quantized", "not quantized", "noise on gradients")
)
_FEDERATED_ROWS = tuple(
    MethodRow(name=name, trust=TRUSTED_SERVER, trial=partial(_table_2, smoothing=smoothing))
    for name, smoothing in (
        ("federated, the paper's 30 rounds", 0.0),
        (f"federated, the paper's 30 rounds, smoothing {SMOOTHING:g}", SMOOTHING),
    )
)

PAPER_TASKS = {
    "paper-online": Task(
        title=f"RCV1, {MOST_NODES} nodes, as in the online paper's Table 1",
        make=_documents,
        data="rcv1",
        epsilons=EPSILONS,
        splits=SPLITS,
        extra_rows=_DOCUMENT_ROWS,
    ),
    "paper-quantized": Task(
        title=f"MNIST, {QUANTIZED_NODES} nodes, as in the quantized paper's Figure 4",
        make=_quantized_images,
        data="mnist",
        epsilons=EPSILONS,
        splits=SPLITS,
        extra_rows=_QUANTIZED_ROWS,
    ),
    "paper-federated": Task(
        title=f"MNIST, {CLIENTS:,} clients, as in the federated paper's Table 2",
        make=_clients,
        data="mnist",
        unit="user",
        delta=CLIENTS**-1.1,
        epsilons=(6.0,),
        splits=SPLITS,
        extra_rows=_FEDERATED_ROWS,
    ),
    "paper-without-replacement": Task(
        title=f"MNIST, {IMAGE_NODES} nodes, as in the without-replacement paper's Figure 3",
        make=partial(_images, public_components=False),
        data="mnist",
        delta=IMAGES_DELTA,
        epsilons=EPSILONS,
        splits=SPLITS,
        not_covered="PCA fitted on the private images",
        extra_rows=_IMAGE_ROWS,
    ),
    "paper-without-replacement-public": Task(
        title=f"the same images, by components of {PUBLIC_RECORDS:,} public ones",
        make=partial(_images, public_components=True),
        data="mnist",
        delta=IMAGES_DELTA,
        epsilons=EPSILONS,
        splits=SPLITS,
        extra_rows=_IMAGE_ROWS,
    ),
}
"""Tasks by name; `not_covered` states features that were made from private records."""
