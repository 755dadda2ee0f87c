"""JAX models: the same numbers as the Rust kernels where both can, and networks that learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from one_round import one_round
from twin_quantized import quantized_gossip
from twins import shorten

from dpmesh import kernels
from dpmesh._ragged import Walks
from dpmesh.algorithms import ClientUpdates, FederatedLearning, QuantizedGossip
from dpmesh.algorithms.denoisers import LaplacianSmoothing
from dpmesh.data import Dataset, digits, iid, train_test_split
from dpmesh.keys import Key, Purpose
from dpmesh.problems import LinearProblem
from dpmesh.run import simulate
from dpmesh.schedules import Constant, SampleSize
from dpmesh.topology import ring

jax = pytest.importorskip("jax", reason="needs the extra jax")
from jax.flatten_util import ravel_pytree  # noqa: E402

from dpmesh.problems import networks  # noqa: E402
from dpmesh.problems.jax_model import JaxProblem  # noqa: E402


def softmax_regression(features: int, classes: int) -> networks.Model:
    def start(key):
        return {"w": jax.numpy.zeros((classes, features))}

    def scores(params, x):
        return params["w"] @ x

    return networks.Model(start, networks.cross_entropy(scores), scores)


def two_layers(features: int, classes: int) -> networks.Model:
    def start(key):
        keys = jax.random.split(key)
        shapes = {"first": (5, features), "second": (classes, 5)}
        return {
            name: jax.random.normal(own, shape)
            for own, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    def scores(params, x):
        return params["second"] @ jax.numpy.tanh(params["first"] @ x)

    return networks.Model(start, networks.cross_entropy(scores), scores)


def make_pair(nodes: int = 7):
    """The same problem twice: on the kernels, and in JAX with chunks that do not divide."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 5)).astype(np.float32)
    labels = rng.integers(0, 3, 60)
    train = Dataset(features, labels, "synthetic")
    parts = iid(train, nodes, rng)
    linear = LinearProblem(train, parts, "softmax", classes=3, test=train, regularization=0.1)
    model = softmax_regression(5, 3)
    return linear, JaxProblem(train, parts, *model, test=train, regularization=0.1, nodes_at_once=3)


@pytest.mark.slow
def test_equals_the_kernels() -> None:
    linear, problem = make_pair()
    assert (problem.nodes, problem.dim, problem.blocks) == (7, 15, (15,))
    params = np.random.default_rng(1).normal(size=(7, 15)).astype(np.float32)
    lengths = [2, 0, 3, 1, 2, 3, 2]
    batches = np.cumsum([0, *lengths]), np.arange(sum(lengths))
    np.testing.assert_allclose(
        problem.objective(params, batches), linear.objective(params, batches), rtol=1e-4
    )
    np.testing.assert_array_equal(problem.accuracy(params), linear.accuracy(params))
    for a, b in zip(
        problem.records_of(np.array([4, 1])), linear.records_of(np.array([4, 1])), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("clipping_norm", [None, 0.7])
def test_gradients_equal_those_of_the_kernels(clipping_norm: float | None) -> None:
    linear, problem = make_pair()
    problem = replace(problem, records_at_once=2)
    params = np.random.default_rng(1).normal(size=(7, 15)).astype(np.float32)
    lengths = [2, 0, 3, 1, 2, 5, 2]
    batches = np.cumsum([0, *lengths]), np.arange(sum(lengths))
    expected = linear.gradient(params, batches, clipping_norm=clipping_norm)
    found = problem.gradient(params, batches, clipping_norm=clipping_norm)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    unclipped = linear.gradient(params, batches)
    assert (abs(found - unclipped).max() > 0.1) == (clipping_norm is not None)
    with pytest.raises(ValueError, match=r"clipping_norm: wanted a finite number greater than 0"):
        problem.gradient(params, batches, clipping_norm=0.0)


@pytest.mark.slow
def test_a_record_moves_a_sum_by_its_own_gradient_alone() -> None:
    """Whichever records it is added up with: with float32 sums it was 1e-5 of it, and grew."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2_000, 5)).astype(np.float32)
    train = Dataset(features, rng.integers(0, 2, 2_000), "noise")
    problem = JaxProblem(train, [np.arange(2_000)], *softmax_regression(5, 2))
    params = rng.normal(size=(1, problem.dim)).astype(np.float32)

    def total(records: np.ndarray) -> np.ndarray:
        return problem.gradient_sum(params, records[np.newaxis], clipping_norm=0.7)

    many, few = np.arange(2_000), np.arange(100)
    for record in (0, 40, 99):
        moved, alone = (total(all_) - total(np.delete(all_, record)) for all_ in (many, few))
        np.testing.assert_allclose(moved, alone, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_quantized_gossip_equals_its_twin_on_a_network() -> None:
    """Not quantized, since the last bits of float32 may turn a coin."""
    rng, key, rounds = np.random.default_rng(0), Key.seeded(1), 4
    train = Dataset(rng.normal(size=(30, 6)).astype(np.float32), rng.integers(0, 3, 30), "noise")
    model = two_layers(6, 3)
    problem = JaxProblem(train, iid(train, 3, rng), *model, regularization=0.1)
    size = SampleSize(scale=3, exponent=0, rounds=rounds)
    algorithm = QuantizedGossip(
        step_size=Constant(0.5),
        consensus_step_size=Constant(0.3),
        sample_size=size,
        noise_std=Constant(0.1),
        compressor=None,
        clipping_norm=0.8,
    )
    run = simulate(algorithm, problem, ring(3), rounds=rounds, key=key, metrics=["loss"])
    start, unravel = ravel_pytree(model.start(jax.random.key(0)))
    slope = jax.jit(jax.grad(lambda w, x, y: model.loss(unravel(w), x, y)))

    def records(i: int, k: int) -> list[int]:
        coins = kernels.uniform((3, 10), key.stream(Purpose.SAMPLE, k))[i]
        return problem.partition[i][np.argsort(coins)[:3]].tolist()

    def gradient(i: int, w: np.ndarray, record: int) -> np.ndarray:
        w = jax.numpy.asarray(w, jax.numpy.float32)
        return shorten(np.asarray(slope(w, train.features[record], train.labels[record])), 0.8)

    def noise(i: int, k: int) -> np.ndarray:
        shape = 3, problem.dim
        if k == 0:
            return np.zeros(problem.dim)
        scale = 0.1 * algorithm.mechanism_of(k).rounding_factor(np.zeros(shape, np.float32))
        return kernels.gaussian(shape, scale, key.stream(Purpose.NOISE, k), dtype=np.float32)[i]

    x, _ = quantized_gossip(
        x0=[problem.initial(key)[0]] * 3,
        gradient=gradient,
        regularization=0.1,
        records=records,
        A=lambda k: ring(3).matrix(k).weights.toarray(),
        alpha=0.5,
        beta=0.3,
        noise=noise,
        coins=lambda i, k: np.zeros(0),
        step=None,
        n=3,
        K=rounds - 1,
    )
    assert len(start) == problem.dim
    np.testing.assert_allclose(run.parameters, x[rounds], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_local_training_equals_the_kernels() -> None:
    """Nodes with 0 to 5 steps, batches of different lengths, a radius that some reach."""
    linear, problem = make_pair()
    rng = np.random.default_rng(5)
    steps = np.cumsum([0, 3, 0, 5, 1, 2, 4, 2])
    indptr = np.cumsum([0, *rng.integers(1, 4, steps[-1])])
    walks = Walks(steps, (indptr, rng.integers(60, size=indptr[-1])))
    start = rng.normal(size=(1, 15)).astype(np.float32)
    for radius in (0.2, 10.0):
        expected = linear.local_training(start, walks, step_size=0.4, radius=radius)
        moves = problem.local_training(start, walks, step_size=0.4, radius=radius)
        np.testing.assert_allclose(moves, expected, atol=1e-5)


@pytest.mark.slow
def test_federated_learning_runs_on_either() -> None:
    linear, problem = make_pair()
    algorithm = FederatedLearning(
        ClientUpdates(clients=7, sampling_rate=0.5, clipping_norm=0.3, epochs=2, batch_size=2),
        noise_multiplier=1.0,
        denoiser=LaplacianSmoothing(1.0, blocks=problem.blocks),
    )
    models = []
    for learned in (linear, problem):
        state = algorithm.init(learned, Key.seeded(2))
        for t in range(3):
            state = one_round(algorithm, state, t, learned, Key.seeded(2)).state
        models.append(state.w)
    np.testing.assert_allclose(models[1], models[0], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_strided_convolutions_are_convolutions() -> None:
    """Of both layers, against the library's own."""
    model = networks.strided_convolutional((15, 17, 2), classes=4, channels=(3, 5))
    params = model.start(jax.random.key(1))
    image = jax.random.normal(jax.random.key(2), (15, 17, 2))
    x = image[jax.numpy.newaxis]
    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(
            x, params[name]["kernel"], (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + params[name]["bias"])
    expected = x.ravel() @ params["output"]["kernel"] + params["output"]["bias"]
    found = jax.jit(model.scores)(params, image)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_convolutional_network_learns_digits() -> None:
    rng = np.random.default_rng(0)
    train, test = train_test_split(digits(), 0.2, rng)
    model = networks.convolutional((8, 8, 1), channels=(4, 8), hidden=(32, 16))
    problem = JaxProblem(
        train, iid(train, 20, rng), *model, test=test, record_shape=(8, 8, 1), nodes_at_once=10
    )
    algorithm = FederatedLearning(
        ClientUpdates(
            clients=20, sampling_rate=0.5, clipping_norm=5.0, sampling="uniform", epochs=2
        ),
        noise_multiplier=None,
        denoiser=LaplacianSmoothing(0.0),
    )
    state = algorithm.init(problem, Key.seeded(0))
    before = problem.accuracy(state.w)[0]
    for t in range(10):
        state = one_round(algorithm, state, t, problem, Key.seeded(0)).state
    assert before < 0.3  # chance is 0.1
    assert problem.accuracy(state.w)[0] > 0.6


def test_the_papers_network_has_the_papers_size() -> None:
    """About 3.4M parameters in total (section 6.2)."""
    shapes = jax.eval_shape(networks.convolutional((32, 32, 3)).start, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == pytest.approx(3.4e6, rel=0.02)


@pytest.mark.slow
def test_a_recurrent_network_learns_a_cycle() -> None:
    """The character after 0 1 2 .. of a cycle of 5."""
    texts = (np.arange(200)[:, np.newaxis] + np.arange(6)) % 5
    train = Dataset(texts.astype(np.float32), (texts[:, -1] + 1) % 5, "cycle")
    model = networks.recurrent(5, hidden=16)
    problem = JaxProblem(train, (np.arange(200),), *model, test=train, nodes_at_once=1)
    w = problem.initial(Key.seeded(0))
    everything = np.arange(151) * 200, np.tile(np.arange(200), 150)
    walk = Walks(np.array([0, 150]), everything)
    w += problem.local_training(w, walk, step_size=2.0, radius=1e3)
    assert problem.accuracy(w)[0] == 1.0


@pytest.mark.slow
def test_starts_differ_by_key_and_repeat() -> None:
    model = networks.convolutional((8, 8, 1), channels=(2, 2), hidden=(4, 4))
    train = Dataset(np.zeros((3, 64)), np.arange(3), "empty")
    problem = JaxProblem(train, (np.arange(3),), *model, record_shape=(8, 8, 1))
    assert problem.dim == problem.initial(Key.seeded(1)).size
    np.testing.assert_array_equal(*(problem.initial(Key.seeded(1)) for _ in range(2)))
    assert (problem.initial(Key.seeded(1)) != problem.initial(Key.seeded(2))).any()


@pytest.mark.slow
def test_a_released_row_is_a_tree_again() -> None:
    linear, _ = make_pair()
    problem = JaxProblem(linear.train, linear.partition, *two_layers(5, 3))
    row = problem.initial(Key.seeded(1))[0] + 1
    tree = problem.model(row)
    assert jax.tree.structure(tree) == jax.tree.structure(problem.start(jax.random.key(0)))
    np.testing.assert_array_equal(np.concatenate([x.ravel() for x in jax.tree.leaves(tree)]), row)
    with pytest.raises(ValueError, match=r"params: wanted shape \(40,\), got shape \(1, 40\)"):
        problem.model(row[np.newaxis])


def test_bad_input_is_named() -> None:
    linear, _ = make_pair()
    model = softmax_regression(5, 3)
    train, parts = linear.train, linear.partition
    with pytest.raises(ValueError, match=r"train: wanted records of shape \(2, 3\), got 5 feat"):
        JaxProblem(train, parts, *model, record_shape=(2, 3))
    with pytest.raises(ValueError, match="nodes_at_once: wanted an integer of at least 1, got 0"):
        JaxProblem(train, parts, *model, nodes_at_once=0)
    with pytest.raises(ValueError, match="records_at_once: wanted an integer of at least 1, got 0"):
        JaxProblem(train, parts, *model, records_at_once=0)
    with pytest.raises(ValueError, match="regularization: wanted a finite number of at least 0"):
        JaxProblem(train, parts, *model, regularization=-1.0)
    with pytest.raises(ValueError, match="partition: wanted at least 1 node, got none"):
        JaxProblem(train, (), *model)
    with pytest.raises(ValueError, match=r"start: wanted a function of a JAX key .*, got {'w'"):
        JaxProblem(train, parts, {"w": np.zeros((5, 3))}, *model[1:])
    with pytest.raises(ValueError, match="test: wanted records to measure the accuracy on"):
        JaxProblem(train, parts, *model).accuracy(np.zeros((1, 15)))
    with pytest.raises(ValueError, match="scores: wanted a function to classify by"):
        JaxProblem(train, parts, *model[:2], test=train).accuracy(np.zeros((1, 15)))
    assert JaxProblem(train, parts, *model, test=train).classifies
    assert not JaxProblem(train, parts, *model[:2], test=train).classifies


def test_patches_and_their_product_are_a_convolution() -> None:
    """Against XLA's convolution and pooling, of an odd and an even side."""
    rng = np.random.default_rng(0)
    image = jax.numpy.asarray(rng.normal(size=(7, 6, 3)), "float32")
    kernel = jax.numpy.asarray(rng.normal(size=(5, 5, 3, 4)), "float32")
    expected = jax.lax.conv_general_dilated(
        image[None], kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    padded = jax.numpy.pad(image, ((2, 2), (2, 2), (0, 0)))
    found = networks._patches(padded) @ kernel.reshape(-1, 4)
    np.testing.assert_allclose(found, expected[0], rtol=1e-4, atol=1e-4)
    pooled = jax.lax.reduce_window(
        expected, -np.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"
    )
    np.testing.assert_allclose(networks._max_pooled(found), pooled[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_flattening_orders_each_tensor() -> None:
    model = networks.convolutional((4, 4, 2), classes=3, channels=(2, 3), hidden=(5, 4))
    train = Dataset(np.zeros((1, 32)), np.zeros(1, np.int64), "empty")
    problem = JaxProblem(train, (np.arange(1),), *model, record_shape=(4, 4, 2))
    order = problem.flattening({4: (3, 2, 0, 1)})
    row = np.arange(problem.dim)
    tensors = jax.tree.leaves(problem._unravel(row.astype(np.float32)))
    expected = [t.transpose(3, 2, 0, 1) if t.ndim == 4 else t for t in tensors]
    np.testing.assert_array_equal(order, np.concatenate([np.ravel(t) for t in expected]))
    np.testing.assert_array_equal(problem.flattening({}), row)
    with pytest.raises(ValueError, match="axes: wanted a permutation of 4 axes"):
        problem.flattening({4: (0, 1, 2, 2)})


def test_functions_that_return_another_shape_are_named() -> None:
    _, problem = make_pair()
    with pytest.raises(ValueError, match=r"loss: wanted .* a number for one .*, got shape \(3,\)"):
        replace(problem, loss=lambda params, x, y: problem.scores(params, x))
    with pytest.raises(ValueError, match=r"scores: wanted .* number for each .*, got shape \(\)"):
        replace(problem, scores=lambda params, x: problem.loss(params, x, 0))
    with pytest.raises(ValueError, match=r"loss: .*, got shape \(\) and shape \(3,\)"):
        replace(problem, loss=lambda params, x, y: (0.0, problem.scores(params, x)))
    with pytest.raises(TypeError):
        replace(problem, loss=lambda params, x: 0.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: networks.convolutional((28, 28)), "image_shape: wanted 3 sizes, got "),
        (lambda: networks.convolutional((0, 28, 1)), "image_shape: wanted an integer of at least"),
        (lambda: networks.convolutional((8, 8, 1), channels=(4,)), "channels: wanted 2 sizes"),
        (lambda: networks.convolutional((8, 8, 1), hidden=8), "hidden: wanted 2 sizes, got 8"),
        (lambda: networks.convolutional((8, 8, 1), classes=1), "classes: wanted an integer of at"),
        (
            lambda: networks.strided_convolutional((12, 28, 1)),
            "image_shape: wanted a height and a width of at least 13, got ",
        ),
        (lambda: networks.strided_convolutional((28, 28, 1), channels=(1, 0)), "channels: wanted"),
    ],
)
def test_networks_name_the_size_that_does_not_fit(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_clients_whose_training_diverges_count_as_zero() -> None:
    _, problem = make_pair()
    steep = replace(problem, loss=lambda params, x, y: 1e38 * jax.numpy.sum(params["w"] * x) * 1e9)
    algorithm = FederatedLearning(
        ClientUpdates(clients=7, sampling_rate=1.0, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
    )
    run = simulate(algorithm, steep, rounds=1)
    assert np.isfinite(run.released).all()
    quiet = replace(algorithm, noise_multiplier=None)
    start = quiet.init(steep, Key.seeded(0)).w
    still = simulate(quiet, steep, rounds=1, key=Key.seeded(0))
    assert np.array_equal(still.released, np.asarray(start))


def test_a_record_without_a_gradient_is_seen_at_its_own_node_alone() -> None:
    """Records are taken several at once; what fills the last of them up is the node's own."""
    features = np.ones((6, 2), np.float32)
    features[0] = 0.0  # whose logarithm is infinite

    def loss(params, x, label):
        return jax.numpy.log(x).sum() * params.sum()

    parts = [np.arange(3), np.arange(3, 6)]
    train = Dataset(features, np.zeros(6, np.int64))
    problem = JaxProblem(train, parts, lambda key: jax.numpy.zeros(2), loss, records_at_once=2)
    params, batches = np.zeros((2, 2), np.float32), problem.records_of(np.arange(2))
    losses = problem.objective(params + 1, batches)
    assert np.isfinite(losses).tolist() == [False, True]
    np.testing.assert_array_equal(problem.gradient(params, batches, clipping_norm=1.0), 0.0)


@pytest.mark.slow
def test_parts_of_a_public_model_learn_and_the_rest_stays() -> None:
    model = networks.convolutional((8, 8, 1), channels=(2, 3), hidden=(6, 5))
    public = model.start(jax.random.key(3))
    image = jax.random.normal(jax.random.key(1), (8, 8, 1))
    last = networks.last_layers(model, public, ["output"])
    low = networks.low_rank(model, public, ["conv2", "dense1"], rank=2)
    for part in (last, low):
        own = part.start(jax.random.key(0))
        np.testing.assert_array_equal(part.scores(own, image), model.scores(public, image))
    sizes = [
        sum(x.size for x in jax.tree.leaves(part.start(jax.random.key(0)))) for part in (last, low)
    ]
    assert sizes == [5 * 10 + 10, 2 * (5 * 5 * 2 + 3) + 2 * (2 * 2 * 3 + 6)]
    own = low.start(jax.random.key(0))
    own["dense1"]["b"] = own["dense1"]["b"] + 1.0
    changed = {**public, "dense1": dict(public["dense1"])}
    update = np.outer(np.asarray(own["dense1"]["a"]).sum(axis=1), np.ones(6))
    changed["dense1"]["kernel"] = public["dense1"]["kernel"] + update
    expected = model.scores(changed, image)
    np.testing.assert_allclose(low.scores(own, image), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"layers: wanted some of conv1, .*, got \['dense3'\]"):
        networks.last_layers(model, public, ["dense3"])
    with pytest.raises(ValueError, match="rank: wanted an integer of at least 1, got 0"):
        networks.low_rank(model, public, "output", rank=0)
