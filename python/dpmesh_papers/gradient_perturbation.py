"""Rivals of the quantized paper: gossip of models with noise on gradients, and CHOCO-SGD.

Models are sent as they are, or as compressed differences with error feedback.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import read_only
from dpmesh._ragged import Ragged
from dpmesh.algorithms import Algorithm, Message, Round
from dpmesh.algorithms.base import initial_parameters
from dpmesh.algorithms.messages import Relay
from dpmesh.kernels.draws import without_replacement
from dpmesh.keys import Key, Purpose
from dpmesh.noise import Gaussian, Mechanism, NoNoise, RandomSparsifier, Sensitivity
from dpmesh.privacy import FixedSizeSampling, Release, Released, Sensitive
from dpmesh.problems import GradientProblem

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ReleasedModels:
    """The models, which are made of noisy gradients alone.

    Parameters
    ----------
    x
        Shape (nodes, dim).
    """

    x: Released


@dataclass(frozen=True, kw_only=True)
class GradientPerturbation(Algorithm[ReleasedModels, GradientProblem]):
    """Gossip of unquantized models with noise on the gradients: x <- A x - alpha (g + noise).

    A is the mixing matrix, g the mean of the clipped gradients of a node's sample.

    Parameters
    ----------
    step_size
        alpha, the learning rate.
    sample_size, records
        Number of records of each node: of the sample of a round, and in all.
    noise_to_sensitivity
        Standard deviation of the noise over the sensitivity of a mean gradient; None for no noise.
    clipping_norm
        Largest L2 norm of a record's gradient.

    Guarantee
    ---------
    (epsilon, delta)-DP of all models together, for replacing one record of a node, where it stays
    secret which records are sampled: each round is a Gaussian mechanism on a sample without
    replacement, and models are post-processing of noisy gradients.
    """

    communication = "gossip"

    step_size: float
    sample_size: int
    records: int
    noise_to_sensitivity: float | None
    clipping_norm: float

    @property
    def mechanism(self) -> Mechanism:
        """The noise of a gradient."""
        if self.noise_to_sensitivity is None:
            return NoNoise()
        return Gaussian(self.noise_to_sensitivity)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the L2 distance by which one record moves a mean of clipped gradients."""
        bound = 2 * self.clipping_norm / self.sample_size
        return Sensitivity(bound, "l2", "one clipped gradient replaced")

    @property
    def sampling(self) -> FixedSizeSampling:
        """The sampling of a node's records: a batch of fixed size, without replacement."""
        return FixedSizeSampling(size=self.sample_size, population=self.records)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the amplification by sampling."""
        return ("who is sampled stays secret",)

    def release_of(self, t: int) -> tuple[Release, Release]:
        """Return the noisy gradients, and the models, made of earlier noisy gradients alone."""
        gradients = Release(t, self.mechanism, self.sensitivity(t), sampling=self.sampling)
        return gradients, Release(t, NoNoise(), Sensitivity(0.0, "l2", "made of releases alone"))

    def init(self, problem: GradientProblem, key: Key) -> ReleasedModels:
        """Return the same public model for all nodes."""
        return ReleasedModels(Released(initial_parameters(problem, key, problem.nodes)))

    def round(
        self, state: ReleasedModels, t: int, problem: GradientProblem, key: Key
    ) -> Round[ReleasedModels]:
        """Send the models, mix them, and step against a noisy gradient."""
        noisy = yield self._gradient(state, t, problem, key)
        mixed = yield Message(Sensitive(state.x), self.release_of(t)[1])
        return ReleasedModels(Released(read_only(mixed - self.step_size * noisy)))

    def _gradient(
        self, state: ReleasedModels, t: int, problem: GradientProblem, key: Key
    ) -> Message:
        """Return the nodes' mean gradients to be noised, shape (nodes, dim); none is sent."""
        batches = self._batches(t, problem, key)
        gradient = problem.gradient(state.x, batches, clipping_norm=self.clipping_norm)
        return Message(Sensitive(gradient), self.release_of(t)[0], is_sent=False)

    def losses(self, state: ReleasedModels, t: int, problem: GradientProblem, key: Key) -> Floats:
        """Return each node's loss at its model x, on its sample of round t, shape (nodes,)."""
        return problem.objective(state.x, self._batches(t, problem, key))

    def _batches(self, t: int, problem: GradientProblem, key: Key) -> Ragged:
        records = problem.records_of(np.arange(problem.nodes))
        return without_replacement(records, self.sample_size, key.stream(Purpose.SAMPLE, t))

    def published(self, state: ReleasedModels, received: Released) -> Released:
        """Return the models, all of which follow from releases."""
        return state.x

    def parameters(self, state: ReleasedModels) -> Released:
        """Return the models."""
        return state.x


@dataclass(frozen=True, kw_only=True)
class CompressedModels(ReleasedModels):
    """Models and the copies of them that others have, all shapes (nodes, dim).

    Parameters
    ----------
    x
        The models.
    copy
        xhat: each node's first model plus its compressed differences, which its neighbours know.
    mixed
        A xhat: the copies, mixed.
    """

    copy: Released
    mixed: Released


@dataclass(frozen=True, kw_only=True)
class ChocoSGD(GradientPerturbation):
    """CHOCO-SGD with noise on gradients: nodes send compressed differences to known copies.

    In a round ``y = x - alpha (g + noise)``, node i sends the compressed ``q_i = Q(y_i - xhat_i)``,
    every copy becomes ``xhat + q``, and ``x = y + gamma (A xhat - xhat)``. What compression leaves
    out of a message stays in the next difference (error feedback). Source: Koloskova, Stich and
    Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
    Communication", 2019, Algorithm 2.

    Parameters
    ----------
    step_size, sample_size, records, noise_to_sensitivity, clipping_norm
        As in `GradientPerturbation`, and so is the guarantee: all that is sent is made of noisy
        gradients.
    keep
        Share of the numbers that a message keeps, drawn at random.
    consensus_step_size
        gamma.
    """

    keep: float
    consensus_step_size: float

    def init(self, problem: GradientProblem, key: Key) -> CompressedModels:
        """Return the same public model for all nodes, with copies of it."""
        x = super().init(problem, key).x
        return CompressedModels(x=x, copy=x, mixed=x)

    def round(
        self, state: ReleasedModels, t: int, problem: GradientProblem, key: Key
    ) -> Round[ReleasedModels]:
        """Step against a noisy gradient, send what changed in short, and move towards others."""
        assert isinstance(state, CompressedModels)
        noisy = yield self._gradient(state, t, problem, key)
        stepped = state.x - self.step_size * noisy
        sparsifier = RandomSparsifier(self.keep)
        change = Sensitive(stepped - state.copy)
        compressed = yield Message(change, self.release_of(t)[1], sparsifier, is_sent=False)
        arrived = yield Relay()
        # the sparsifier divides by `keep`, which is undone here
        copy = state.copy + self.keep * compressed
        mixed = state.mixed + self.keep * arrived
        x = stepped + self.consensus_step_size * (mixed - copy)
        return CompressedModels(
            x=Released(read_only(x)),
            copy=Released(read_only(copy)),
            mixed=Released(read_only(mixed)),
        )
