"""The choice of algorithm, network, rounds and steps for a budget: a rule over public numbers.

Sites add up gradients under a secure sum (`FederatedLearning` of `RecordGradients`), so that one
noise is enough for all of their records, wherever two honest sites are left when the colluding ones
are not counted. Fewer sites send each other noisy models (`GradientDescent` by gossip): there one
noise for all is no less than one of each site. Partners that share noise, which cancels where
models are averaged, have nearly as little of it without a server.

The rule for steps is the same for both, for records of norm 1, as `dpmesh.tables` and
`dpmesh.data.unit_norm` make them. Let a path be the length of all steps together, and let epsilon
and delta be those of mu-Gaussian-DP. At the end of the path noise has the standard deviation

    path * 2 * clipping_norm / (effective_records * mu)

in the score of a record, however many rounds share the path; see `Sizes.effective_records`. The
path is as long as that noise allows, in 100 steps of at most the longest length that is stable.
That is too short a path for linear classifiers of large tables. They take up to 400 steps if that
leaves little noise. Under a secure sum these have momentum, which costs nothing, since it follows
from what was released, and makes a path of steps of the same size longer by 1 / (1 - momentum). By
gossip momentum would break the guarantee.
``docs/learning_rates.md`` has the measurements behind the constants.
"""

from dpmesh.defaults.choice import Choice, choose
from dpmesh.defaults.rule import Method, Sizes, Task, method_for, network, step_size

__all__ = ["Choice", "Method", "Sizes", "Task", "choose", "method_for", "network", "step_size"]
