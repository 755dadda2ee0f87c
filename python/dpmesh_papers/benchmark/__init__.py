"""The benchmark: one comparison of all methods that a reader can trust, ``dpmesh benchmark``.

All methods learn the same task at the same epsilon, delta, unit and neighbouring relation. Rounds
and steps follow from public numbers by one rule (`RULE` of `dpmesh_papers.benchmark.methods`),
never from test records. Each method stands beside the majority class, a single site,
and centralized records, with what it sends, what it costs by proof, and whom one has to trust. A
cell that cannot be run states why.
"""
