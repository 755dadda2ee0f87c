"""PyTorch modules: the numbers of the Rust kernels where both can, and a network that learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from one_round import one_round

from dpmesh._ragged import Walks
from dpmesh.algorithms import ClientUpdates, FederatedLearning
from dpmesh.algorithms.denoisers import LaplacianSmoothing
from dpmesh.data import Dataset, digits, iid, train_test_split
from dpmesh.keys import Key
from dpmesh.problems import LinearProblem
from dpmesh.schedules import Constant

torch = pytest.importorskip("torch", reason="needs the extra torch")
from dpmesh.problems.torch_model import TorchProblem  # noqa: E402

torch.set_num_threads(1)  # its threads spin where others want the processors


def make_pair():
    """The same problem twice: on the kernels, and in PyTorch with chunks that do not divide."""
    rng = np.random.default_rng(0)
    train = Dataset(
        rng.normal(size=(60, 5)).astype(np.float32), rng.integers(0, 3, 60), "synthetic"
    )
    parts = iid(train, 7, rng)
    linear = LinearProblem(train, parts, "softmax", classes=3, test=train, regularization=0.1)

    def make_module():
        return torch.nn.Linear(5, 3, bias=False)

    return linear, TorchProblem(
        train, parts, make_module, test=train, regularization=0.1, nodes_at_once=3
    )


def test_equals_the_kernels() -> None:
    linear, problem = make_pair()
    assert (problem.nodes, problem.dim, problem.blocks) == (7, 15, (15,))
    rng = np.random.default_rng(1)
    params = rng.normal(size=(7, 15)).astype(np.float32)
    lengths = [2, 0, 3, 1, 2, 3, 2]
    batches = np.cumsum([0, *lengths]), np.arange(sum(lengths))
    expected = linear.objective(params, batches)
    np.testing.assert_allclose(problem.objective(params, batches), expected, rtol=1e-4)
    to_read = params.view()  # as a metric gets them
    to_read.flags.writeable = False
    np.testing.assert_array_equal(problem.accuracy(to_read), linear.accuracy(params))
    steps = np.cumsum([0, 3, 0, 5, 1, 2, 4, 2])
    indptr = np.cumsum([0, *rng.integers(1, 4, steps[-1])])
    walks = Walks(steps, (indptr, rng.integers(60, size=indptr[-1])))
    for radius in (0.2, 10.0):
        moves = problem.local_training(params[:1], walks, step_size=0.4, radius=radius)
        expected = linear.local_training(params[:1], walks, step_size=0.4, radius=radius)
        np.testing.assert_allclose(moves, expected, atol=1e-5)
    for found, wanted in zip(
        problem.records_of(np.array([4, 1])), linear.records_of(np.array([4, 1])), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_a_convolutional_module_learns_digits() -> None:
    train, test = train_test_split(digits(), 0.2, np.random.default_rng(0))

    def make_module():
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(128, 10),
        )

    parts = iid(train, 40, np.random.default_rng(1))
    problem = TorchProblem(train, parts, make_module, test=test, record_shape=(1, 8, 8))
    assert problem.blocks == (72, 8, 1280, 10)
    algorithm = FederatedLearning(
        ClientUpdates(
            clients=40, sampling_rate=0.5, clipping_norm=2.0, epochs=2, step_size=Constant(0.5)
        ),
        noise_multiplier=0.1,
        denoiser=LaplacianSmoothing(0.5, blocks=problem.blocks),
    )
    key = Key.seeded(0)
    state = algorithm.init(problem, key)
    for t in range(8):
        state = one_round(algorithm, state, t, problem, key).state
    assert problem.accuracy(algorithm.parameters(state))[0] > 0.8


def test_a_released_row_is_a_module_again() -> None:
    _, problem = make_pair()
    row = problem.initial(Key.seeded(0))[0]
    before = torch.random.get_rng_state()
    module = problem.model(row)
    assert torch.equal(torch.random.get_rng_state(), before)
    np.testing.assert_array_equal(
        torch.nn.utils.parameters_to_vector(module.parameters()).detach(), row
    )
    with pytest.raises(ValueError, match=r"params: wanted shape \(\d+,\), got shape \(1, "):
        problem.model(row[np.newaxis])


def test_starts_differ_by_key_and_repeat() -> None:
    _, problem = make_pair()
    before = torch.random.get_rng_state()
    one, again, other = (problem.initial(Key.seeded(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_does_not_fit_is_named() -> None:
    train = Dataset(np.zeros((4, 6)), np.zeros(4, np.int64), "empty")

    def make(**options):
        arguments = {"train": train, "partition": (np.arange(4),)} | options
        return TorchProblem(**({"make_module": linear} | arguments))

    def linear() -> torch.nn.Module:
        return torch.nn.Linear(6, 2)

    def with_part(part: torch.nn.Module) -> dict:
        return {"make_module": lambda: torch.nn.Sequential(part, linear())}

    for bad, message in (
        ({"regularization": -1.0}, "regularization: wanted a finite number of at least 0"),
        ({"nodes_at_once": 0}, "nodes_at_once: wanted an integer of at least 1"),
        ({"record_shape": (2, 2)}, r"train: wanted records of shape \(2, 2\), got 6 features"),
        ({"partition": ()}, "partition: wanted at least 1 node"),
        ({"make_module": linear()}, r"make_module: wanted a function .*, got Linear\(in"),
        ({"make_module": 3}, "make_module: wanted a function that returns a module, got 3"),
        ({"make_module": lambda: 3}, "make_module: wanted a function that returns a module, got 3"),
        (with_part(torch.nn.BatchNorm1d(6)), "make_module: wanted .* norm .*, got BatchNorm1d"),
        (with_part(torch.nn.Dropout(0.5)), r"make_module: wanted .* dropout, .*, got Dropout"),
        (
            {"make_module": lambda: torch.nn.Sequential(linear(), torch.nn.Flatten(0))},
            r"make_module: wanted .* row of scores for each record, got shape \(2,\) for one",
        ),
        ({"loss": "mse"}, "loss: wanted a function of scores, labels and reduction, .* got 'mse'"),
        ({"loss": torch.nn.CrossEntropyLoss()}, "loss: wanted .* got CrossEntropyLoss"),
        (
            {"loss": lambda scores, labels, reduction: scores.sum()},
            r"loss: wanted .* the loss of each record, got shape \(\) for one",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make(**bad)
    assert make(**with_part(torch.nn.Dropout(0.5).eval())).dim == 14
    with pytest.raises(ValueError, match="test: wanted records to measure the accuracy on"):
        make().accuracy(np.zeros((1, 14), np.float32))


class Centred(torch.nn.Linear):
    """Batch norm by another name: what it makes of a record depends on the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(dim=0))


class Remembers(torch.nn.Linear):
    """Keeps what it saw in a buffer, from one client to the next."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x) + 1e-6 * self.seen
        self.seen = x.mean()
        return scores


def mean_of_all(scores: torch.Tensor, labels: torch.Tensor, reduction: str) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores, labels).reshape(1)


def relative_to_mean(scores: torch.Tensor, labels: torch.Tensor, reduction: str) -> torch.Tensor:
    losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    return losses - losses.mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"make_module": lambda: Centred(5, 3)}, "make_module: wanted .* each record by itself"),
        ({"make_module": lambda: Remembers(5, 3)}, "make_module: wanted .* keeps nothing of what"),
        ({"loss": mean_of_all}, r"loss: wanted .* got shape \(1,\) for two"),
        ({"loss": relative_to_mean}, "loss: wanted .* each record by itself, got another loss"),
    ],
)
def test_what_mixes_records_is_refused(options: dict, message: str) -> None:
    _, problem = make_pair()
    with pytest.raises(ValueError, match=message):
        replace(problem, **options)


def test_a_client_is_not_filled_up_with_the_records_of_another() -> None:
    """Not even with weight 0, which an infinite loss makes NaN."""

    def inverse_labels(scores, labels, reduction):
        return scores.sum(dim=1) / labels

    train = Dataset(np.ones((5, 2)), np.array([0, 1, 1, 1, 1]), "one that has an infinite loss")
    parts = np.array([0]), np.array([1, 2, 3]), np.array([4])
    problem = TorchProblem(train, parts, lambda: torch.nn.Linear(2, 2), loss=inverse_labels)
    walks = Walks(np.arange(4), problem.records_of(np.arange(3)))
    start = problem.initial(Key.seeded(0))
    moves = problem.local_training(start, walks, step_size=0.1, radius=1.0)
    assert np.isfinite(moves).all(axis=1).tolist() == [False, True, True]
