"""Learning problems with any JAX model, on records that are divided among nodes.

The module needs the extra ``jax``. A *row* is one node's model, as a flat vector of parameters.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.flatten_util import ravel_pytree

import dpmesh.kernels as kernels
from dpmesh._arrays import FloatArray
from dpmesh._ragged import Indices, Numbers, Ragged, Walks, rectangle, rows
from dpmesh._validate import fail
from dpmesh.kernels.linear_model import Batches
from dpmesh.kernels.projection import Norm
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems.dense import DenseProblem, Microbatches, as_ragged
from dpmesh.tables.models import Outline

Params = Any
"""Parameters of a model: a pytree of JAX arrays."""

TESTS_AT_ONCE = 32
"""Number of test records that are scored at once.

It is so small that a batch fits into a processor's cache: the patches of a convolution need many
times the image's memory."""

_BLOCK = 64
"""Number of terms that are added at once in the norm of a gradient."""


@dataclass(frozen=True, eq=False)
class JaxProblem(DenseProblem):
    """Learning problem with a JAX model, given as pure functions of its parameters.

    The parameters of all nodes are the rows of one float32 array: the model's pytree, flattened by
    `jax.flatten_util.ravel_pytree`. Several nodes train in one vectorized, compiled call.

    Parameters
    ----------
    train
        Training records of all nodes together, with dense features.
    partition
        Indices in `train` of each node's records, as for a `LinearProblem`.
    start
        Function ``start(key)`` that returns the initial parameters, a pytree, from a JAX key.
    loss
        Function ``loss(params, features, label)`` that returns the loss of one record, a number.
    scores
        Function ``scores(params, features)`` that returns the scores of one record, shape
        (classes,). None if `accuracy` is not needed.
    test
        Test records for `accuracy`; None for none.
    record_shape
        Shape of a record's features for the model, such as (28, 28, 1); by default a vector.
    regularization
        Factor lambda of the regularizer ``lambda |w|^2 / 2`` in each node's objective (weight
        decay), at least 0.
    nodes_at_once
        Number of nodes that are vectorized together, which bounds the memory. Several such groups
        train at once, on several threads. For convolutions on a CPU, 1 is fastest.
    records_at_once
        Number of records of a node whose gradients are in memory at once, for clipping.
    outline
        Meaning of features and labels, so that a run returns a `dpmesh.tables.models.Model` that
        reads tables; None for none.

    Raises
    ------
    ValueError
        If an argument is invalid, or a function returns an array of the wrong shape. An error that
        a function raises is passed on.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> data = dm.data.Dataset(np.eye(4), np.arange(4) % 2)
    >>> problem = dm.problems.JaxProblem(
    ...     data,
    ...     dm.data.iid(data, 2, np.random.default_rng(0)),
    ...     lambda key: {"w": jnp.zeros((4, 2))},
    ...     lambda params, x, y: -(x @ params["w"])[y.astype(int)],
    ...     lambda params, x: x @ params["w"],
    ... )
    >>> problem.dim
    8
    """

    start: Callable[[Array], Params]
    loss: Callable[[Params, Array, Array], Array]
    scores: Callable[[Params, Array], Array] | None = None
    _: KW_ONLY
    outline: Outline | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.start):
            expected = "a function of a JAX key that returns parameters"
            fail("start", expected, reprlib.repr(self.start))
        x = np.asarray(self.train.features[:1], np.float32).reshape(self._shape)
        _check_result("loss", "a number", 0, self.loss, self._shapes, x, self.train.labels[0])
        if self.scores is not None:
            _check_result("scores", "a number for each class", 1, self.scores, self._shapes, x)

    @property
    def classifies(self) -> bool:
        """True if there are test records and `scores`, as `accuracy` needs."""
        return self.test is not None and self.scores is not None

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """Number of elements of each tensor, in the order in which the tensors are flattened.

        As `blocks` of `LaplacianSmoothing`, they make it smooth each tensor separately.
        """
        return tuple(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self._shapes))

    def flattening(self, axes: Mapping[int, tuple[int, ...]]) -> Indices:
        """Return a permutation of the parameters that permutes the axes of each tensor.

        Use it as ``Reordered(LaplacianSmoothing(1.0, blocks=problem.blocks), order)``.

        Parameters
        ----------
        axes
            New order of the axes, from the slowest to the fastest, by the number of a tensor's
            axes. ``{4: (3, 2, 0, 1)}`` orders the kernels of convolutions by output channel, input
            channel, row and column. Tensors with another number of axes keep their order.

        Returns
        -------
        Indices of parameters in the new order, shape (dim,).

        Raises
        ------
        ValueError
            If the axes of a tensor are not a permutation.
        """
        pieces = []
        first = 0
        for leaf in jax.tree.leaves(self._shapes):
            chosen = axes.get(len(leaf.shape), tuple(range(len(leaf.shape))))
            if sorted(chosen) != list(range(len(leaf.shape))):
                fail("axes", f"a permutation of {len(leaf.shape)} axes", chosen)
            size = int(np.prod(leaf.shape))
            places = np.arange(first, first + size).reshape(leaf.shape)
            pieces.append(places.transpose(chosen).ravel())
            first += size
        return np.concatenate(pieces)

    def initial(self, key: Key) -> FloatArray:
        """Return initial parameters of one model from `start`, shape (1, dim), float32."""
        seed = int(generator(key, Purpose.INIT).integers(2**31))
        flat, _ = ravel_pytree(self.start(jax.random.key(seed)))
        return np.array(flat, dtype=np.float32)[np.newaxis]

    def model(self, params: FloatArray) -> Params:
        """Return parameters as the model's pytree.

        Parameters
        ----------
        params
            Parameters of one model, shape (dim,), such as ``run.released[0]``.

        Raises
        ------
        ValueError
            If the number of parameters is not `dim`.
        """
        if np.shape(params) != (self.dim,):
            fail("params", f"shape ({self.dim},)", f"shape {np.shape(params)}")
        return self._unravel(jnp.asarray(params))

    def local_training(
        self,
        start: FloatArray,
        walks: Walks,
        *,
        step_size: float,
        radius: float,
        proximal: float = 0.0,
        correction: FloatArray | None = None,
    ) -> FloatArray:
        """Train nodes from one common model by local gradient steps, and return their updates.

        Let g be the gradient of a node's objective on its next batch. One step is
        ``w <- start + clip(w - step_size g(w) - start, radius)``, with a clip in L2 norm.

        Parameters
        ----------
        start
            The common model, shape (1, dim).
        walks
            Batches of each node, in the order of its local steps.
        step_size
            Learning rate of all steps.
        radius
            Largest L2 distance of a model from `start`.
        proximal
            Factor mu of ``mu / 2 |w - start|^2`` in the objective (FedProx).
        correction
            Vectors that are added to each node's gradients, shape (nodes, dim) (SCAFFOLD); None
            for none.

        Returns
        -------
        The updates ``w - start``, shape (nodes, dim).
        """
        steps = np.diff(walks.steps)
        updates = np.zeros((len(steps), self.dim), np.float32)
        sizes = np.array([step_size, radius, proximal], np.float32)
        # Group nodes with similar numbers of steps: a group takes as long as its longest walk.
        by_steps = np.argsort(steps, kind="stable")
        active = by_steps[np.count_nonzero(steps == 0) :]
        groups = [
            active[first : first + self.nodes_at_once]
            for first in range(0, len(active), self.nodes_at_once)
        ]

        def train(nodes: Indices) -> None:
            batches = self._padded_steps(walks, nodes)
            offsets = np.zeros(1, np.float32)
            if correction is not None:
                offsets = self._padded(correction[nodes])
            trained = self._training(start[0], sizes, offsets, *batches, *self._on_device)
            updates[nodes] = trained[: len(nodes)]

        _on_threads(train, groups)
        return updates

    def objective(self, params: FloatArray, batches: Batches) -> Numbers:
        """Return the objective of each row's model on its batch, shape (rows,)."""
        values = np.empty(len(params))
        for chunk, indices, weights in self._chunks(as_ragged(batches)):
            batch = indices, weights, *self._on_device
            losses = self._objectives(self._padded(params[chunk]), *batch)
            values[chunk] = losses[: len(values[chunk])]
        return values

    def accuracy(self, params: FloatArray) -> Numbers:
        """Return the fraction of test records that each model classifies correctly.

        Parameters
        ----------
        params
            Parameters of each model, shape (rows, dim).

        Returns
        -------
        Accuracies from 0 to 1, shape (rows,).

        Raises
        ------
        ValueError
            If there are no test records, or no `scores`.
        """
        test = self._required_test()
        if self.scores is None:
            fail("scores", "a function to classify by", None)
        x = self._shaped(test)
        batches = [x[i : i + TESTS_AT_ONCE] for i in range(0, len(x), TESTS_AT_ONCE)]

        def rate(row: FloatArray) -> float:
            guesses = _on_threads(lambda batch: np.asarray(self._guesses(row, batch)), batches)
            return float((np.concatenate(guesses) == test.labels).mean())

        return np.array([rate(row) for row in params])

    @cached_property
    def _shapes(self) -> Params:
        """The model's pytree, with shapes and dtypes in place of arrays."""
        return jax.eval_shape(self.start, jax.random.key(0))

    @cached_property
    def _on_device(self) -> tuple[Array, Array]:
        """Features and labels of the training records, as JAX arrays."""
        return jnp.asarray(self._shaped(self.train)), jnp.asarray(self.train.labels)

    @cached_property
    def _unravel(self) -> Callable[[Array], Params]:
        """Function that returns the pytree of a row of parameters."""
        return ravel_pytree(self.start(jax.random.key(0)))[1]

    @cached_property
    def _row_objective(self) -> Callable[..., Array]:
        """Function that returns the objective of one row on its weighted records."""
        unravel = self._unravel
        loss = jax.vmap(self.loss, (None, 0, 0))

        def objective(row: Array, indices: Array, weights: Array, x: Array, y: Array) -> Array:
            losses = loss(unravel(row), x[indices], y[indices])
            mean = (weights * losses).sum() / jnp.maximum(weights.sum(), 1)
            return mean + self.regularization / 2 * (row @ row)

        return objective

    @cached_property
    def _objectives(self) -> Callable[..., Array]:
        """Compiled `_row_objective` of several rows."""
        return jax.jit(jax.vmap(self._row_objective, (0, 0, 0, None, None)))

    def _clipped_sums(
        self, params: FloatArray, micro: Microbatches, bound: float, norm: Norm
    ) -> Numbers:
        count = len(micro.owners)
        padding = (0, self.nodes_at_once - count)  # one compiled shape for all
        owners = np.pad(micro.owners, padding)
        indices = np.pad(micro.indices, (padding, (0, 0)))
        is_used = np.pad(micro.used, (padding, (0, 0)))
        sums, lost = self._compiled_sums[norm](
            params, count, owners, indices, is_used, np.float32(bound), *self._on_device
        )
        exact: Numbers = np.add(sums[:count], lost[:count], dtype=np.float64)
        return exact

    @cached_property
    def _compiled_sums(self) -> Mapping[Norm, Callable[..., tuple[Array, Array]]]:
        """Compiled functions that sum the clipped gradients of microbatches, by the clipped norm.

        They return the sums and their rounding errors (see `_exact_sum`), both of shape
        (nodes_at_once, dim).
        """
        unravel = self._unravel

        def record_loss(row: Array, features: Array, label: Array) -> Array:
            return self.loss(unravel(row), features, label)

        record_gradients = jax.vmap(jax.grad(record_loss), (None, 0, 0))

        def sums(
            norm: Norm,
            params: Array,
            count: Array,
            owners: Array,
            indices: Array,
            is_used: Array,
            bound: Array,
            x: Array,
            y: Array,
        ) -> tuple[Array, Array]:
            def add_microbatch(i: Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
                gradients = record_gradients(params[owners[i]], x[indices[i]], y[indices[i]])
                norms = _norms(gradients, norm)
                is_finite = jnp.isfinite(norms)
                clipping = jnp.where(norms > bound, bound / norms, 1)
                factors = is_used[i] * is_finite * clipping
                finite_gradients = jnp.where(is_finite[:, jnp.newaxis], gradients, 0)
                clipped_sum, lost = _exact_sum(finite_gradients * factors[:, jnp.newaxis])
                sums, losts = so_far
                return sums.at[i].set(clipped_sum), losts.at[i].set(lost)

            zeros = jnp.zeros((self.nodes_at_once, params.shape[1]), params.dtype)
            all_sums: tuple[Array, Array] = jax.lax.fori_loop(
                0, count, add_microbatch, (zeros, zeros)
            )
            return all_sums

        return {"l1": jax.jit(partial(sums, "l1")), "l2": jax.jit(partial(sums, "l2"))}

    @cached_property
    def _training(self) -> Callable[..., Array]:
        """Compiled local training of `nodes_at_once` nodes: see `local_training`."""
        gradients = jax.vmap(jax.grad(self._row_objective), (0, 0, 0, None, None))

        def train(
            start: Array,
            sizes: Array,
            correction: Array,
            steps: Array,
            indices: Array,
            weights: Array,
            x: Array,
            y: Array,
        ) -> Array:
            step_size, radius, proximal = sizes

            def one_step(i: Array, moves: Array) -> Array:
                gradient = gradients(start + moves, indices[i], weights[i], x, y)
                stepped = moves - step_size * (gradient + proximal * moves + correction)
                norms = jnp.linalg.norm(stepped, axis=1, keepdims=True)
                clipped = stepped * jnp.minimum(1, radius / jnp.maximum(norms, 1e-30))
                return jnp.where((i < steps)[:, jnp.newaxis], clipped, moves)

            no_moves = jnp.zeros((len(steps), len(start)), start.dtype)
            moves: Array = jax.lax.fori_loop(0, steps.max(), one_step, no_moves)
            return moves

        return jax.jit(train)

    def _padded_steps(self, walks: Walks, nodes: Indices) -> tuple[Indices, Indices, FloatArray]:
        """Return the walks of some nodes as arrays, padded so that only a few shapes are compiled.

        Returns
        -------
        The number of steps of each node, shape (nodes_at_once,); record indices of all batches, and
        weights (1, or 0 for padding), both of shape (steps, nodes_at_once, batch size). The number
        of steps is padded to a power of 2.
        """
        all_batches = np.arange(walks.steps[-1])
        indptr, batches = rows((walks.steps, all_batches), nodes)  # each node's batches
        records, is_used = rectangle(rows(walks.batches, batches))
        steps = np.zeros(self.nodes_at_once, np.int64)
        steps[: len(nodes)] = np.diff(indptr)
        padded_steps = 1 << int(steps.max() - 1).bit_length()
        node_of_batch = np.repeat(np.arange(len(nodes)), np.diff(indptr))
        step_of_batch = np.arange(len(batches)) - indptr[node_of_batch]
        indices = np.zeros((padded_steps, self.nodes_at_once, records.shape[1]), np.int64)
        weights = np.zeros(indices.shape, np.float32)
        indices[step_of_batch, node_of_batch] = records
        weights[step_of_batch, node_of_batch] = is_used
        return steps, indices, weights

    @cached_property
    def _guesses(self) -> Callable[..., Array]:
        """Compiled function that returns the predicted classes of records."""
        assert self.scores is not None
        unravel = self._unravel
        scores = jax.vmap(self.scores, (None, 0))
        return jax.jit(lambda row, x: scores(unravel(row), x).argmax(axis=1))

    def _chunks(self, batches: Ragged) -> Iterator[tuple[slice, Indices, FloatArray]]:
        """Yield slices of `nodes_at_once` rows, their batches as padded arrays, and weights."""
        indices, weights = rectangle(batches)
        for first in range(0, len(indices), self.nodes_at_once):
            chunk = slice(first, first + self.nodes_at_once)
            yield chunk, self._padded(indices[chunk]), self._padded(weights[chunk])

    def _padded(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the array padded with 0 to `nodes_at_once` rows, for one compiled shape."""
        missing = np.zeros((self.nodes_at_once - len(array), *array.shape[1:]), array.dtype)
        return np.concatenate([array, missing])


def _norms(gradients: Array, norm: Norm) -> Array:
    """Return the norm of each row, shape (rows,), in float32.

    Sums are computed in blocks of blocks, so that rounding grows with the logarithm of `dim` only.
    """
    if norm == "l1":
        return _sums_in_blocks(jnp.abs(gradients))
    return jnp.sqrt(_sums_in_blocks(gradients**2))


def _sums_in_blocks(terms: Array) -> Array:
    """Return the sum of each row, shape (rows,)."""
    while terms.ndim == 2:
        padding = -terms.shape[1] % _BLOCK
        whole_blocks = jnp.pad(terms, ((0, 0), (0, padding)))
        terms = whole_blocks.reshape(len(terms), -1, _BLOCK).sum(axis=2)
        if terms.shape[1] == 1:
            terms = terms[:, 0]
    return terms


def _exact_sum(rows: Array) -> tuple[Array, Array]:
    """Return the sum of rows and the sum of its rounding errors, each of shape (dim,).

    Both together have about the accuracy of float64. Knuth's two-sum gives the rounding error of
    each addition exactly.
    """

    def add(so_far: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], None]:
        total, lost = so_far
        new_total = total + row
        added = new_total - total  # the summand after rounding
        error = (total - (new_total - added)) + (row - added)
        return (new_total, lost + error), None

    zeros = jnp.zeros_like(rows[0])
    sums: tuple[Array, Array]
    sums, _ = jax.lax.scan(add, (zeros, zeros), rows)
    return sums


def _check_result(
    name: str, expected: str, axes: int, function: Callable[..., Any], *arguments: Any
) -> None:
    """Raise a ValueError unless a model's function returns one array with `axes` axes."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(function, *arguments))]
    if [len(shape) for shape in shapes] != [axes]:
        got = " and ".join(f"shape {shape}" for shape in shapes) or "nothing"
        fail(name, f"a function that returns {expected} for one record", got)


def _on_threads(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Return the results of `work` on each item, on several threads.

    JAX releases Python's interpreter lock while it computes.
    """
    with ThreadPoolExecutor(kernels.get_threads()) as pool:
        return list(pool.map(work, items))
