"""Private statistics of the records of several sites: means, tables, regressions, survival curves.

`ask` answers several questions from noisy sums, with one (epsilon, delta) for all answers together.

>>> asked = [dm.statistics.Mean("age"), dm.statistics.Histogram("stage")]   # doctest: +SKIP
>>> print(dm.statistics.ask(asked, table, site, ranges=ranges, epsilon=1))  # doctest: +SKIP
"""

from dpmesh.statistics.answers import Answer, Row
from dpmesh.statistics.ask import Statistics, ask
from dpmesh.statistics.pairs import Pairs
from dpmesh.statistics.questions import Correlation, Histogram, Mean, Quantiles, Question, TwoWay
from dpmesh.statistics.regression import Regression
from dpmesh.statistics.survival import Survival

__all__ = [
    "Answer",
    "Correlation",
    "Histogram",
    "Mean",
    "Pairs",
    "Quantiles",
    "Question",
    "Regression",
    "Row",
    "Statistics",
    "Survival",
    "TwoWay",
    "ask",
]
