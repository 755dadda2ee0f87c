"""Any PyTorch module on records that are divided among nodes; needs the extra ``torch``."""

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
"""Test records whose scores are computed at once, which bounds the memory."""

_LEAST_NORM = 1e-30
"""Smaller norms of updates count as this, to divide by them."""

_ROUNDING = 0.01
"""Relative difference of equal numbers on a device: some multiply matrices in 10-bit mantissas."""

_MIX_RECORDS = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.dropout._DropoutNd)
"""Modules that in training mode make a record's scores depend on other records, or on coins."""


@dataclass(frozen=True, eq=False)
class TorchProblem(DenseProblem):
    """A module, the records of each node, and test records.

    Parameters of nodes are rows of one float32 array: the module's parameters in their order,
    flattened. A stack of nodes trains in one vectorized call (`torch.func`), so the module must
    work under `torch.func.vmap`. Batch norm in training mode does not: its statistics would
    include the padding. Nor does dropout, whose coins are not from the key. Group norm works.
    A test with two records, alone and together, checks that module and loss treat each by itself.

    Parameters
    ----------
    train
        All records to learn from; dense features.
    partition
        Which of them each node has, as for a `LinearProblem`.
    make_module
        ``make_module()`` returns a new module; it is called after PyTorch's generator was seeded.
        The module takes a batch of records and returns a row of scores for each.
    test
        Records for `accuracy`.
    loss
        ``loss(scores, labels, reduction="none")``: the loss of each record, as by the functions of
        ``torch.nn.functional``. Cross-entropy by default; with weights for the classes it is
        ``functools.partial(cross_entropy, weight=weights)``.
    record_shape
        Shape of a record's features for the module, such as (1, 28, 28); a vector by default.
    regularization
        Factor of ``|w|^2 / 2`` in each node's objective: weight decay.
    nodes_at_once, records_at_once
        How many nodes are vectorized together, and how many records' gradients of each when they
        are clipped, which bounds the memory.
    device
        Where the module runs, such as ``"cuda"``.

    Raises
    ------
    ValueError
        If an argument does not fit.
    RuntimeError
        By PyTorch, if the module cannot take a record.
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
        """Fail unless the first record has the same scores and loss alone and beside the last.

        The guarantee rests on it: a record's clipped gradient must not depend on other records.
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
        """Return the scores and the losses of some records, without gradients."""
        with torch.no_grad():
            scores = self._module(x)
            return scores, self.loss(scores, y, reduction="none")

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of the module's tensors in a row, for smoothing each on its own."""
        return tuple(tensor.numel() for tensor in self._module.parameters())

    def initial(self, key: Key) -> FloatArray:
        """Parameters of one new module, shape (1, dim)."""
        seed = int(generator(key, Purpose.INIT).integers(2**31))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make_module()
        flat = torch.nn.utils.parameters_to_vector(module.parameters())
        start: FloatArray = flat.detach().cpu().numpy()[np.newaxis].astype(np.float32)
        return start

    def model(self, params: FloatArray) -> torch.nn.Module:
        """Return a module with these parameters: shape (dim,), as ``run.released[0]`` has.

        Raises
        ------
        ValueError
            If their number is not that of the module's parameters.
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
        """Train many nodes from one model within a ball around it.

        See `JaxProblem.local_training` for steps, parameters and the result.
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
        """Each row's objective on its batch, shape (rows,)."""
        values = []
        batches = as_ragged(batches)
        for first in range(0, len(params), self.nodes_at_once):
            chunk = np.arange(first, min(first + self.nodes_at_once, len(params)))
            stack = torch.as_tensor(params[chunk], dtype=torch.float32, device=self.device)
            values.append(func.vmap(self._objective)(stack, *self._batch(rows(batches, chunk))))
        return np.asarray(torch.cat(values).detach().cpu().numpy(), dtype=np.float64)

    def accuracy(self, params: FloatArray) -> Numbers:
        """Fraction of the test records that each row of parameters classifies correctly.

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
        with torch.random.fork_rng(devices=[]):
            module = self.make_module()
        instance("make_module", module, "a function that returns a module", torch.nn.Module)
        return module.to(self.device)

    @cached_property
    def _on_device(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = self._shaped(self.train)
        y = self.train.labels
        return torch.tensor(x, device=self.device), torch.tensor(y, device=self.device)

    def _batch(self, batches: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the records of each batch as a rectangle of indices, with weights 1 or 0."""
        indices, weights = rectangle(batches)
        return (
            torch.as_tensor(indices, device=self.device),
            torch.as_tensor(weights, device=self.device),
        )

    def _scores(self, row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        pieces = torch.split(row, list(self.blocks))
        named = zip(self._module.named_parameters(), pieces, strict=True)
        params = {name: piece.view_as(tensor) for (name, tensor), piece in named}
        scores: torch.Tensor = func.functional_call(self._module, params, (x,))
        return scores

    def _objective(
        self, row: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        x, y = self._on_device
        losses = self.loss(self._scores(row, x[indices]), y[indices], reduction="none")
        mean = (weights * losses).sum() / weights.sum().clamp(min=1)
        return mean + self.regularization / 2 * (row @ row)

    @cached_property
    def _gradients(self) -> Callable[..., torch.Tensor]:
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
        # No matrix product, whose precision users can lower for all of PyTorch.
        clipped = gradients.mul_(factors[:, :, None])
        sums: Numbers = clipped.sum(dim=1, dtype=torch.float64).cpu().numpy()
        return sums

    @cached_property
    def _record_gradients(self) -> Callable[..., torch.Tensor]:
        """Gradients of each row's records, without weight decay, shape (rows, records, dim)."""
        x, y = self._on_device

        def loss(row: torch.Tensor, record: torch.Tensor) -> torch.Tensor:
            index = record.reshape(1)
            return self.loss(self._scores(row, x[index]), y[index], reduction="none")[0]

        records = func.vmap(func.grad(loss), (None, 0))
        gradients: Callable[..., Any] = func.vmap(records, (0, 0))
        return gradients


def _differ(alone: torch.Tensor, beside: torch.Tensor) -> bool:
    """Return True if numbers differ by more than rounding, which is coarse on some devices."""
    difference = (alone - beside).abs().max()
    return bool((difference > _ROUNDING * alone.abs().max()).item())
