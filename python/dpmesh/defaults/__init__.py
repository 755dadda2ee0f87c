"""Default settings of a run for a privacy budget: a rule over public numbers alone.

The rule chooses algorithm, network, rounds and learning rate.

Algorithm and network
    Sites add up gradients under secure aggregation (`FederatedLearning` of `RecordGradients`) if at
    least two honest sites remain beside the colluding ones: the noise of one site is then enough
    for the sum. Fewer sites send noisy models by gossip (`GradientDescent`), since a sum would need
    no less noise than one site. Gossip with pairwise-cancelling noise (`BetweenPartners`) needs
    nearly as little noise as a sum, without a server.

Learning rate
    Records have norm 1, as `dpmesh.tables` and `dpmesh.data.unit_norm` make them. The *path* is the
    sum of the learning rates of all rounds. Let mu be the parameter of the Gaussian DP that has the
    given epsilon and delta. At the end of the path the score of a record has noise of standard
    deviation

        path * 2 * clipping_norm / (effective_records * mu)

    however many rounds share the path; `Sizes.effective_records` counts the records that share one
    noise. The rule takes the longest path for which this noise is small enough, in 100 rounds
    of at most the largest stable learning rate.

Linear classifiers of large tables
    That path is too short for them. They have up to 400 rounds if the noise stays small. Under
    secure aggregation they also have momentum, a function of released sums, which costs no privacy
    and lengthens the path by 1 / (1 - momentum). By gossip momentum would break the guarantee.

``docs/learning_rates.md`` has the measurements behind the constants.
"""

from dpmesh.defaults.choice import Choice, choose
from dpmesh.defaults.rule import Method, Sizes, Task, method_for, network, step_size

__all__ = ["Choice", "Method", "Sizes", "Task", "choose", "method_for", "network", "step_size"]
