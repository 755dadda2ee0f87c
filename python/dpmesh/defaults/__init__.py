"""Default settings of a run for a privacy budget: a rule over public numbers alone.

The rule chooses algorithm, network, rounds and learning rate.

Algorithm and network
    Sites add up gradients under secure aggregation (`FederatedLearning` of `RecordGradients`) if at
    least two sites do not collude: together they add the noise that one sum needs. Fewer sites send
    noisy models by gossip (`GradientDescent`), since each site would have to add the whole noise of
    a sum. Gossip with pairwise-cancelling noise (`BetweenPartners`) needs nearly as little noise as
    a sum, without a server.

Learning rate
    Records have norm 1, as `dpmesh.tables` and `dpmesh.data.unit_norm` make them. The *path* is the
    sum of the learning rates of all rounds. Let mu be the parameter of the Gaussian DP that has the
    given epsilon and delta. At the end of the path the score of a record has noise of standard
    deviation

        path * 2 * clipping_norm / (effective_records * mu)

    for any number of rounds: more rounds have smaller steps and more noise each.
    `Sizes.effective_records` is the number of records under central DP that has as much noise in
    the mean. The rule takes the longest path for which this noise is small enough, in 100 rounds
    of at most the largest stable learning rate.

Linear classifiers of large tables
    A path of 100 rounds is too short for large tables. Linear classifiers thus have up to 400
    rounds if the noise stays small.

Momentum
    Linear models have momentum under secure aggregation. Momentum is post-processing of released
    sums, which costs no privacy, and lengthens the path by 1 / (1 - momentum). Gossip has none: the
    guarantee would break.

``docs/learning_rates.md`` has the measurements behind the constants.
"""

from dpmesh.defaults.choice import Choice, choose
from dpmesh.defaults.rule import Method, Sizes, Task, method_for, network, step_size

__all__ = ["Choice", "Method", "Sizes", "Task", "choose", "method_for", "network", "step_size"]
