"""Learning problems with any PyTorch module, on records that are divided among nodes.

The module needs the extra ``torch``. A *row* is one node's model, as a flat vector of parameters.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import func

from dpmesh._arrays import FloatArray
from dpmesh._ragged import Numbers, Ragged, Walks, rectangle, rows
from dpmesh._validate import fail, instance
from dpmesh.kernels.linear_model import Batches
from dpmesh.kernels.projection import Norm
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems.dense import DenseProblem, Microbatches, as_ragged

TESTS_AT_ONCE = 1024
"""Number of test records that are scored at once, which bounds the memory."""

_LEAST_NORM = 1e-30
"""Smallest norm of an update that is divided by; smaller norms are replaced by it."""

_ROUNDING = 0.01
"""Largest relative difference that counts as rounding: some devices have 10-bit mantissas."""

_MIX_RECORDS = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.dropout._DropoutNd)
"""Modules that in training mode make a record's scores depend on other records or on dropout."""


@dataclass(frozen=True, eq=False)
class TorchProblem(DenseProblem):
    """Learning problem with a PyTorch module.

    The parameters of all nodes are the rows of one float32 array: the module's parameters,
    flattened in their order. Several nodes train in one vectorized call (`torch.func`), so that the
    module must work under `torch.func.vmap`. Group norm works. Batch norm in training mode does
    not, since its statistics would include the padding; dropout does not, since its random numbers
    would not follow from the key. A test with two records, alone and together, checks that module
    and loss treat each record separately.

    Parameters
    ----------
    train
        Training records of all nodes together, with dense features.
    partition
        Indices in `train` of each node's records, as for a `LinearProblem`.
    make_module
        Function ``make_module()`` that returns a new module. PyTorch's random number generator is
        seeded before `initial` calls it. The module maps a batch of records to scores, shape
        (records, classes).
    test
        Test records for `accuracy`; None for none.
    loss
        Function ``loss(scores, labels, reduction="none")`` that returns the loss of each record,
        such as those of ``torch.nn.functional``. Cross-entropy by default; with weights of classes
        it is ``functools.partial(cross_entropy, weight=weights)``.
    record_shape
        Shape of a record's features for the module, such as (1, 28, 28); by default a vector.
    regularization
        Factor lambda of the regularizer ``lambda |w|^2 / 2`` in each node's objective (weight
        decay), at least 0.
    nodes_at_once
        Number of nodes that are vectorized together, which bounds the memory.
    records_at_once
        Number of records of a node whose gradients are in memory at once, for clipping.
    device
        PyTorch device of the computation, such as ``"cuda"``.

    Raises
    ------
    ValueError
        If an argument is invalid, or the scores or losses of a record depend on other records.
    RuntimeError
        By PyTorch, if the module does not accept a record.
    """

    make_module: Callable[[], torch.nn.Module]
    _: KW_ONLY
    loss: Callable[..., torch.Tensor] = torch.nn.functional.cross_entropy
    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.make_module, torch.nn.Module) or not callable(self.make_module):
            fail("make_module", "a function that returns a module", reprlib.repr(self.make_module))
        if not callable(self.loss) or isinstance(self.loss, torch.nn.modules.loss._Loss):
            expected = "a function of scores, labels and reduction, such as F.cross_entropy"
            fail("loss", expected, repr(self.loss))
        for part in self._module.modules():
            if part.training and isinstance(part, _MIX_RECORDS):
                expected = "a module without batch norm and dropout, or with them in eval()"
                fail("make_module", expected, type(part).__name__)
        self._check_each_record_by_itself()

    def _check_each_record_by_itself(self) -> None:
        """Check that the first record has equal scores and losses alone and in a batch of two.

        A record's clipped gradient must not depend on other records: the guarantee assumes it.
        """
        features, labels = self._on_device
        x = features[[0, -1]]
        y = labels[[0, -1]]
        buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        scores, losses = self._scores_and_losses(x[:1], y[:1])
        for name, buffer in self._module.named_buffers():
            if not torch.equal(buffers[name], buffer):
                fail("make_module", "a module that keeps nothing of what it sees", "another buffer")
        if scores.ndim != 2 or len(scores) != 1:
            expected = "a module that returns a row of scores for each record"
            fail("make_module", expected, f"shape {tuple(scores.shape)} for one")
        expected_loss = "a function that returns the loss of each record"
        if losses.shape != (1,):
            fail("loss", expected_loss, f"shape {tuple(losses.shape)} for one")
        scores_of_two, losses_of_two = self._scores_and_losses(x, y)
        if _differ(scores[0], scores_of_two[0]):
            expected = "a module that scores each record by itself"
            fail("make_module", expected, "other scores beside another record")
        if losses_of_two.shape != (2,):
            fail("loss", expected_loss, f"shape {tuple(losses_of_two.shape)} for two")
        if _differ(losses[0], losses_of_two[0]):
            fail("loss", f"{expected_loss} by itself", "another loss beside another record")

    def _scores_and_losses(
        self, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores and losses of records, without tracking gradients."""
        with torch.no_grad():
            scores = self._module(x)
            return scores, self.loss(scores, y, reduction="none")

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """Number of elements of each of the module's tensors, in their order.

        As `blocks` of `LaplacianSmoothing`, they make it smooth each tensor separately.
        """
        return tuple(tensor.numel() for tensor in self._module.parameters())

    def initial(self, key: Key) -> FloatArray:
        """Return the parameters of one new module, shape (1, dim), float32."""
        seed = int(generator(key, Purpose.INIT).integers(2**31))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make_module()
        flat = torch.nn.utils.parameters_to_vector(module.parameters())
        start: FloatArray = flat.detach().cpu().numpy()[np.newaxis].astype(np.float32)
        return start

    def model(self, params: FloatArray) -> torch.nn.Module:
        """Return a new module with the given parameters.

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
        with torch.random.fork_rng(devices=[]):
            module = self.make_module()
        torch.nn.utils.vector_to_parameters(
            torch.tensor(params, dtype=torch.float32), module.parameters()
        )
        return module

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

        Steps, parameters and result are as in `JaxProblem.local_training`.
        """
        steps = np.diff(walks.steps)
        updates = np.zeros((len(steps), self.dim), np.float32)
        common = torch.tensor(start[0], dtype=torch.float32, device=self.device)
        for first in range(0, len(steps), self.nodes_at_once):
            chunk = slice(first, min(first + self.nodes_at_once, len(steps)))
            moves = torch.zeros(chunk.stop - first, self.dim).to(self.device)  # w - start
            offset = torch.zeros_like(moves)
            if correction is not None:
                offset += torch.as_tensor(correction[chunk], device=self.device)
            for i in range(int(steps[chunk].max())):
                active = np.flatnonzero(steps[chunk] > i)
                batches = rows(walks.batches, walks.steps[chunk][active] + i)
                gradients = self._gradients(common + moves[active], *self._batch(batches))
                gradients = gradients + proximal * moves[active] + offset[active]
                stepped = moves[active] - step_size * gradients
                norms = stepped.norm(dim=1, keepdim=True).clamp(min=_LEAST_NORM)
                moves[active] = stepped * (radius / norms).clamp(max=1)
            updates[chunk] = moves.cpu().numpy()
        return updates

    def objective(self, params: FloatArray, batches: Batches) -> Numbers:
        """Return the objective of each row's model on its batch, shape (rows,)."""
        values = []
        batches = as_ragged(batches)
        for first in range(0, len(params), self.nodes_at_once):
            chunk = np.arange(first, min(first + self.nodes_at_once, len(params)))
            stack = torch.as_tensor(params[chunk], dtype=torch.float32, device=self.device)
            values.append(func.vmap(self._objective)(stack, *self._batch(rows(batches, chunk))))
        return np.asarray(torch.cat(values).detach().cpu().numpy(), dtype=np.float64)

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
            If there are no test records.
        """
        test = self._required_test()
        x = torch.tensor(self._shaped(test), device=self.device)
        rates = []
        with torch.no_grad():
            for row in torch.tensor(params, dtype=torch.float32, device=self.device):
                scores = [self._scores(row, block) for block in torch.split(x, TESTS_AT_ONCE)]
                guesses = torch.cat(scores).argmax(dim=1).cpu().numpy()
                rates.append((guesses == test.labels).mean())
        return np.array(rates)

    @cached_property
    def _module(self) -> torch.nn.Module:
        """Module whose functions are called with parameters of rows."""
        with torch.random.fork_rng(devices=[]):
            module = self.make_module()
        instance("make_module", module, "a function that returns a module", torch.nn.Module)
        return module.to(self.device)

    @cached_property
    def _on_device(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and labels of the training records, as tensors on the device."""
        x = self._shaped(self.train)
        y = self.train.labels
        return torch.tensor(x, device=self.device), torch.tensor(y, device=self.device)

    def _batch(self, batches: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
        """Return record indices and weights of padded batches, both of shape (rows, batch size).

        A weight is 1 for a record and 0 for padding.
        """
        indices, weights = rectangle(batches)
        return (
            torch.as_tensor(indices, device=self.device),
            torch.as_tensor(weights, device=self.device),
        )

    def _scores(self, row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of records x under a row of parameters, shape (records, classes)."""
        pieces = torch.split(row, list(self.blocks))
        params: dict[str, torch.Tensor] = {}
        for (name, tensor), piece in zip(self._module.named_parameters(), pieces, strict=True):
            params[name] = piece.view_as(tensor)
        scores: torch.Tensor = func.functional_call(self._module, params, (x,))
        return scores

    def _objective(
        self, row: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the objective of one row of parameters on its weighted records."""
        x, y = self._on_device
        losses = self.loss(self._scores(row, x[indices]), y[indices], reduction="none")
        mean = (weights * losses).sum() / weights.sum().clamp(min=1)
        return mean + self.regularization / 2 * (row @ row)

    @cached_property
    def _gradients(self) -> Callable[..., torch.Tensor]:
        """Function that returns the gradient of each row's objective."""
        gradients: Callable[..., Any] = func.vmap(func.grad(self._objective))
        return gradients

    def _clipped_sums(
        self, params: FloatArray, micro: Microbatches, bound: float, norm: Norm
    ) -> Numbers:
        stack = torch.as_tensor(params[micro.owners], device=self.device)
        indices = torch.as_tensor(micro.indices, device=self.device)
        gradients = self._record_gradients(stack, indices)
        order = 1 if norm == "l1" else 2
        norms = torch.linalg.vector_norm(gradients, order, dim=2, dtype=torch.float64)
        finite = norms.isfinite()
        factors = (bound / norms).clamp(max=1).where(finite, 0.0).float()
        factors = factors * torch.as_tensor(micro.used, device=self.device)
        gradients = gradients.where(finite[:, :, None], 0.0)
        # A matrix product could have a lower precision, by a global setting of PyTorch.
        clipped = gradients.mul_(factors[:, :, None])
        sums: Numbers = clipped.sum(dim=1, dtype=torch.float64).cpu().numpy()
        return sums

    @cached_property
    def _record_gradients(self) -> Callable[..., torch.Tensor]:
        """Function that returns the gradient of each record's loss, shape (rows, records, dim)."""
        x, y = self._on_device

        def loss(row: torch.Tensor, record: torch.Tensor) -> torch.Tensor:
            index = record.reshape(1)
            return self.loss(self._scores(row, x[index]), y[index], reduction="none")[0]

        records = func.vmap(func.grad(loss), (None, 0))
        gradients: Callable[..., Any] = func.vmap(records, (0, 0))
        return gradients


def _differ(alone: torch.Tensor, beside: torch.Tensor) -> bool:
    """Return True if the two tensors differ by more than the rounding of some devices."""
    difference = (alone - beside).abs().max()
    return bool((difference > _ROUNDING * alone.abs().max()).item())
