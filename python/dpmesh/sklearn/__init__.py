"""Estimators with the interface of scikit-learn, trained with DP across sites (extra ``data``).

```python
model = dm.sklearn.PrivateClassifier(epsilon=2.0, ranges=ranges)
model.fit(X, y, groups=site).predict(X)
print(model.report_)
```
"""

from dpmesh._extras import needed_by

with needed_by("dpmesh.sklearn"):
    from dpmesh.sklearn.estimators import PrivateClassifier, PrivateRegressor
    from dpmesh.sklearn.evaluation import Evaluation, evaluate
    from dpmesh.sklearn.report import FitReport
    from dpmesh.sklearn.tuning import Tuned, tune

__all__ = [
    "Evaluation",
    "FitReport",
    "PrivateClassifier",
    "PrivateRegressor",
    "Tuned",
    "evaluate",
    "tune",
]
