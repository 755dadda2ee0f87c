"""`Regression`: private linear, logistic and Poisson regressions with intervals.

`Regression` delegates to one of two methods. `Moments` fits a linear regression from noisy second
moments. `Newton` fits a logistic or Poisson regression by Newton steps, one per round, from noisy
sums of gradients and Hessians. In the last round both may release the outer products of gradients,
for robust standard errors.

Notation: z is the coded vector of terms of a record (`dpmesh.statistics.design`), with p entries
and L2 norm at most R; y is the target. The estimand are the coefficients that all records of the
population would give under the model, whether or not the model is true. All answers are
post-processing of the released sums.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from typing import ClassVar

import numpy as np

from dpmesh._validate import fail, nearest
from dpmesh.algorithms.adaptive_sums import NoisyTotal
from dpmesh.statistics.answers import Answer, Fit, Row, Z, p_value_of, unknown_row
from dpmesh.statistics.bins import Floats, ends
from dpmesh.statistics.design import CONSTANT, Design
from dpmesh.statistics.families import (
    FAMILIES,
    LARGEST_EXPONENT,
    LINEAR,
    NEWTON_SHARES,
    STEEPEST,
    Family,
    Poisson,
    family_of,
)
from dpmesh.statistics.geometry import Columns, Size, kind_of, matrix_of_triangle, triangles
from dpmesh.statistics.newton import Curvature, Errors, Step, errors, not_at_rest, second_order
from dpmesh.statistics.questions import Kinds, Question, several
from dpmesh.tables.kinds import Category, Flag, Kind, Number

FAMILY_NAMES = (*FAMILIES, LINEAR)

ROUNDED_TO = 2.0**20
"""Inverse of the unit to which coefficients are rounded. Each party of a contract computes the
coefficients by itself, and libraries of linear algebra differ in their last bits."""

LINEAR_SHARES = (0.8, 0.2)
"""Shares of the budget (mu^2) of a robust linear regression: second moments, then outer products of
gradients."""

FEW_DEVIATIONS = 6.0
"""Clipping bound of residuals, in their standard deviations; it affects robust errors alone.

The noise of these errors grows with the square of the bound. A normal residual lies beyond 6
deviations with a probability of 2e-9; of any distribution at most 1/36, about 3%, lies there
(Chebyshev's inequality).
"""

MOST_WIDE = 1_000
"""Largest number p of coefficients: a round releases about p^2 numbers."""

RECORDS_PER_COEFFICIENT = 10
"""Smallest number of records per coefficient; with fewer a regression is refused.

The usual rule for logistic regressions asks for 10 events per coefficient (Peduzzi, Concato,
Kemper, Holford and Feinstein 1996). The number of events is private, the number of records public.
So this rule is weaker, and refuses hopeless cases only.
"""

LEAST_VARIANCE = 1e-4
"""Smallest variance of residuals, for targets in [-1, 1].

The estimate is a difference of noisy sums, which may be negative. The floor corresponds to a
standard deviation of 0.01, that is 0.5% of the target's range. It keeps standard errors and the
clipping bound of residuals above 0.
"""

WIDEST_RESIDUAL = 2.0
"""Largest absolute residual of a target and a prediction in [-1, 1]."""

SLACK = 1 + 1e-9
"""Factor on norms and sensitivities that exceeds the rounding errors of float64."""

INDEPENDENT = (
    "each interval is 95% by itself, so that of 20 coefficients one misses on average; records are "
    "taken as independent"
)
ESTIMAND = "estimates what all records of the population would give under this model, true or not"


@dataclass(frozen=True, init=False)
class Regression(Question):
    """Coefficients of a linear, logistic or Poisson regression, with standard errors and p-values.

    Standard errors include privacy noise and sampling. A record with a missing value contributes
    the zero vector to every sum.

    Parameters
    ----------
    target
        Name of the dependent variable: a flag (logistic), a number (linear), or a count from 0
        (Poisson).
    terms
        Names of the independent variables: numbers, flags or categories.
    family
        ``"linear"``, ``"logistic"`` or ``"poisson"``; by default logistic for a flag, else linear.
    robust
        True if a linear regression also releases the outer products of the residuals, for
        heteroscedasticity-consistent standard errors. False assumes residuals of equal variance.
        Logistic and Poisson regressions always release the outer products, without further epsilon.

    Raises
    ------
    ValueError
        If there is no term, a column is named twice, or `family` is unknown.

    Guarantee
    ---------
    In each round the vector of a record is a function of the record, of public numbers and of
    released sums. Replacing a record changes the sum by at most the sensitivity that `sizes`
    states, in L2 norm (docs/privacy/regression.md).

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.statistics.Regression("died", "age", "arm")
    Regression(target='died', terms=('age', 'arm'), family=None, robust=True)
    """

    target: str
    terms: tuple[str, ...]
    family: str | None = None
    robust: bool = True

    def __init__(
        self, target: str, *terms: str, family: str | None = None, robust: bool = True
    ) -> None:
        several((target, *terms), 2)
        if family is not None and family not in FAMILY_NAMES:
            hint = nearest(family, FAMILY_NAMES)
            fail("family", f"one of {', '.join(FAMILY_NAMES)}", f"{family!r}{hint}")
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "family", family)
        object.__setattr__(self, "robust", robust)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that the question reads."""
        return (self.target, *self.terms)

    def _method(self, kinds: Kinds) -> Newton | Moments:
        """Return the method of the family: `Moments` for a linear regression, else `Newton`.

        Raises
        ------
        ValueError
            If the range of a column does not suit its role, or there are too many coefficients.
        """
        design = Design(kinds={name: kinds[name] for name in self.terms})
        for name in self.terms:
            kind_of(kinds, name, (Number, Flag, Category), "a number, a flag or a category")
            term = kinds[name]
            if isinstance(term, Category) and len(term.categories) < 2:
                fail(name, "at least 2 categories", term.toml)
        if design.width > MOST_WIDE:
            expected = f"at most {MOST_WIDE} coefficients, those of levels included"
            fail("terms", expected, design.width)
        kind = kinds[self.target]
        family = family_of(self.target, kind)  # raises for a category or a date
        if self.family is not None:
            family = self.family
        if family == LINEAR:
            kind_of(kinds, self.target, (Number, Flag), "a number for a linear regression")
            return Moments(target=self.target, kind=kind, design=design, robust=self.robust)
        FAMILIES[family].check(self.target, kind)
        return Newton(target=self.target, kind=kind, design=design, family=FAMILIES[family])

    def shares(self, kinds: Kinds) -> tuple[float, ...]:
        """Return the share of the question's budget (mu^2) in each round; shares add up to 1."""
        return self._method(kinds).shares

    def sizes(self, kinds: Kinds) -> tuple[Size, ...]:
        """Return length, largest norm and sensitivity of a record's vector in each round."""
        return self._method(kinds).sizes

    def vectors_in(self, columns: Columns, t: int, totals: Sequence[NoisyTotal]) -> Floats:
        """Return the vector of each record in round t, shape (records, dim)."""
        kinds = {name: columns[name].kind for name in self.names}
        vectors = self._method(kinds).vectors(columns, t, totals)
        is_finite = np.asarray(np.isfinite(vectors).all(axis=1))
        return np.where(is_finite[:, np.newaxis], vectors, 0.0)

    def require_all(self, kinds: Kinds, noises: Sequence[float], records: int) -> None:
        """Raise a `ValueError` before any release if there are too few records for the noise.

        Coefficients are shown only if all eigenvalues of the noisy Hessian exceed a limit in
        proportion to its noise. Without noise, the diagonal entry of the constant is at most
        `largest_weight` per record, and the smallest eigenvalue is at most this entry. So with too
        few records only noise could lift the smallest eigenvalue above the limit.

        Parameters
        ----------
        kinds
            Public range of each column.
        noises
            Standard deviation of the noise in each element of each round's sum.
        records
            Public number of records of all sites.
        """
        method = self._method(kinds)
        width = method.design.width
        fewest_records = RECORDS_PER_COEFFICIENT * width
        if records < fewest_records:
            expected = f"at least {fewest_records} records for {width} coefficients"
            fail(str(self), expected, records)
        eigenvalue_limit = method.curvature_limit(noises[method.hessian_round])
        largest_eigenvalue = method.largest_weight * records  # upper bound of the smallest one
        if largest_eigenvalue <= eigenvalue_limit:
            fewest_records_at_noise = f"{eigenvalue_limit / method.largest_weight:,.0f}"
            expected = f"more than {fewest_records_at_noise} records at this noise, fewer terms"
            fail(str(self), f"{expected} or a larger epsilon", records)

    def __str__(self) -> str:
        return f"{self.target}~{','.join(self.terms)}"

    def answer_from(self, kinds: Kinds, totals: Sequence[NoisyTotal], records: int) -> Answer:
        """Return coefficients in the units of the columns, or the reason for not showing them."""
        return self._method(kinds).answer(totals, records)


@dataclass(frozen=True, kw_only=True)
class _RegressionMethod:
    """Base class of both methods: vectors of records, and coefficients from their noisy sums.

    Parameters
    ----------
    target, kind
        Name and public range of the target.
    design
        The terms.
    """

    target: str
    kind: Kind
    design: Design
    hessian_round: ClassVar[int]
    """Index of the round whose Hessian determines the errors of the coefficients."""

    @property
    @abstractmethod
    def shares(self) -> tuple[float, ...]:
        """Share of the question's budget (mu^2) in each round; shares add up to 1."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[Size, ...]:
        """Length, largest norm and sensitivity of a record's vector in each round."""

    @property
    @abstractmethod
    def largest_weight(self) -> float:
        """Largest weight w of a record in the Hessian, the sum of w z z'."""

    @property
    @abstractmethod
    def family_name(self) -> str:
        """Name of the family."""

    @abstractmethod
    def curvature_limit(self, noise: float) -> float:
        """Return the limit that all eigenvalues of the Hessian must exceed to show coefficients.

        Parameters
        ----------
        noise
            Standard deviation of the noise in each element of the sum of `hessian_round`.
        """

    @property
    def title(self) -> str:
        """The model as a formula, such as ``died ~ age + arm (logistic)``."""
        terms = " + ".join(self.design.kinds)
        return f"{self.target} ~ {terms} ({self.family_name})"

    @property
    def triangle(self) -> int:
        """Number of entries in the upper triangle of a p x p matrix."""
        width = self.design.width
        return width * (width + 1) // 2

    def _notes(self) -> list[str]:
        """Return notes on levels, rounds, budget shares and the estimand, all public."""
        columns = len(self.design.kinds)
        notes = []
        for name, kind in self.design.kinds.items():
            if isinstance(kind, Category):
                notes.append(f"{name}: {len(kind.categories)} levels against {kind.categories[0]}")
        shares = ", ".join(f"{100 * share:g}%" for share in self.shares)
        count = len(self.shares)
        rounds = f"1 round with {shares}" if count == 1 else f"{count} rounds with {shares}"
        length = f"squared length of a coded record at most {columns + 1} for {columns} columns"
        notes.append(f"{rounds} of its budget; {length}")
        notes.append(ESTIMAND)
        notes.append(INDEPENDENT)
        return notes

    def refused(self, reason: str, curvature: Curvature) -> Answer:
        """Return an answer without coefficients, with the reason in its notes."""
        return Answer(
            title=self.title,
            rows=tuple(unknown_row(name) for name in self.design.names),
            notes=(f"not shown: {reason}", *_curvature_notes(curvature), *self._notes()),
            explained=True,
        )

    def too_flat(self, curvature: Curvature) -> Answer:
        """Return an answer without coefficients that names the columns of the flattest direction.

        This is the eigenvector of the smallest eigenvalue of the Hessian.
        """
        names = self.design.columns_along(curvature.weakest)
        terms = [name for name in names if name != CONSTANT] or names
        reason = (
            "too few records at this noise, a range far wider than its values, or columns that "
            f"nearly determine each other: {', '.join(terms)}; drop one, narrow a range by public "
            "knowledge, or take a larger epsilon"
        )
        return self.refused(reason, curvature)

    def shown(
        self, coefficients: Floats, covariances: Errors, curvature: Curvature, notes: Sequence[str]
    ) -> Answer:
        """Return the answer with coefficients and their errors, in the units of the columns.

        Parameters
        ----------
        coefficients
            Coefficients of z, shape (p,).
        covariances
            Covariance matrices of these coefficients.
        curvature
            Noisy Hessian.
        notes
            First notes of the answer; notes on the curvature and the model follow.
        """
        fit = fit_of(self.design, coefficients, covariances, scale=self._target_scale)
        fit = replace(fit, coefficients=self._shifted(fit.coefficients))
        deviations = np.sqrt(np.diag(fit.covariance))
        noise = np.sqrt(np.diag(np.array(fit.noise_covariance)))
        sampling = np.sqrt(np.diag(np.array(fit.sampling_covariance)))
        rows = []
        for place, name in enumerate(fit.names):
            estimate = fit.coefficients[place]
            deviation = float(deviations[place])
            half = Z * deviation
            rows.append(
                Row(
                    name,
                    estimate=estimate,
                    noise=Z * float(noise[place]),
                    sampling=Z * float(sampling[place]),
                    low=estimate - half,
                    high=estimate + half,
                    p_value=p_value_of(estimate, deviation),
                )
            )
        all_notes = list(notes)
        if curvature.is_near_limit:
            all_notes.append("near the limit of what this noise allows: intervals are wide")
        all_notes += [*_curvature_notes(curvature), *self._notes()]
        return Answer(
            title=self.title,
            rows=tuple(rows),
            notes=tuple(all_notes),
            fit=fit,
            effects=over_ranges(rows[1:], self.design.spans()[1:]),
            effect_scale=self._effect_scale,
        )

    @property
    @abstractmethod
    def _effect_scale(self) -> str:
        """Scale of `Answer.effects`, as text."""

    @property
    def _target_scale(self) -> float:
        """Units of the target per unit of the score ``z @ coefficients``."""
        return 1.0

    def _shifted(self, coefficients: tuple[float, ...]) -> tuple[float, ...]:
        """Return coefficients with the constant shifted to the origin of the target's units."""
        return coefficients


def _curvature_notes(curvature: Curvature) -> list[str]:
    """Return a note on the smallest eigenvalue of the released Hessian, and its limit."""
    smallest = f"smallest released curvature {curvature.smallest:.4g}"
    return [f"{smallest}; coefficients are shown above {curvature.limit:.4g}"]


def fit_of(design: Design, coefficients: Floats, covariances: Errors, scale: float) -> Fit:
    """Convert coefficients of z and their covariances to the units of the columns.

    The sampling variance of a coefficient is the larger of the model-based and the robust variance.
    The correlations are model-based.

    Parameters
    ----------
    design
        The terms.
    coefficients
        Coefficients of z, shape (p,).
    covariances
        Covariance matrices of these coefficients.
    scale
        Units of the target per unit of the score.
    """
    to_units = scale * design.to_units

    def in_units(matrix: Floats) -> Floats:
        return np.asarray(to_units @ matrix @ to_units.T)

    model = in_units(covariances.model)
    variances = np.diag(model).copy()
    if covariances.robust is not None:
        variances = np.maximum(variances, np.diag(in_units(covariances.robust)))
    widening = np.sqrt(variances / np.diag(model))  # factor on each deviation, at least 1
    sampling = model * np.outer(widening, widening)
    return Fit(
        names=design.names,
        coefficients=tuple((to_units @ coefficients).tolist()),
        noise_covariance=_plain(in_units(covariances.noise)),
        sampling_covariance=_plain(sampling),
    )


def _plain(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    """Return a matrix in plain types, row by row."""
    return tuple(tuple(row) for row in matrix.tolist())


@dataclass(frozen=True, kw_only=True)
class Newton(_RegressionMethod):
    """Logistic or Poisson regression: each round releases gradient and Hessian of a Newton step.

    The vector of a record is ``(g / M, H sqrt(kappa) / (R M))`` and, in the last round, also ``J
    sqrt(lam) / (R M^2)``: gradient, Hessian and outer product of the gradient. M is the largest
    target; kappa and lam are constants of the family, see `dpmesh.statistics.families`.

    Parameters
    ----------
    family
        The family of generalized linear models.
    """

    family: Family
    hessian_round = -1

    @property
    def family_name(self) -> str:
        """The name of the family."""
        return self.family.name

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of its budget that each round has."""
        return NEWTON_SHARES

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Length, largest norm and sensitivity of a record's vector in each round.

        The vector of the last round is longer, with the same norm and sensitivity.
        """
        width = self.design.width
        radius = self.design.radius
        norm = self.family.norm * radius * SLACK
        distance = self.family.distance * radius * SLACK
        step = Size(width + self.triangle, norm, distance)
        last = Size(width + 2 * self.triangle, norm, distance)
        earlier_rounds = len(self.shares) - 1
        return (*[step] * earlier_rounds, last)

    @property
    def largest_weight(self) -> float:
        """Largest weight of a record in the Hessian."""
        return self.family.largest_weight * self.family.bound(self.kind)

    def curvature_limit(self, noise: float) -> float:
        """Return the eigenvalue that all of the Hessian's must exceed for coefficients to be shown.

        `noise` is the standard deviation of the noise in each number of a round's total.
        """
        width = self.design.width
        return Curvature(np.zeros((width, width)), self._hessian_noise(noise)).limit

    def _hessian_noise(self, noise: float) -> float:
        """Return the noise in diagonal entries of the Hessian, from the noise in the sum."""
        bound = self.family.bound(self.kind)
        return noise * bound * self.design.radius / sqrt(self.family.kappa)

    def vectors(self, columns: Columns, t: int, totals: Sequence[NoisyTotal]) -> Floats:
        """Return the vector of each record in round t, shape (records, dim): see the class.

        Parameters
        ----------
        columns
            The cells of each column.
        t
            The round, from 0.
        totals
            Noisy sums of the rounds before t, which determine the coefficients.
        """
        column = columns[self.target]
        rows = self.design.rows(columns) * column.present[:, np.newaxis]  # z, shape (records, p)
        scores = rows @ self.coefficients(totals)
        # residuals and weights are divided by the largest target M
        residuals, weights = self.family.residuals_and_weights(
            scores, self.family.targets(column), self.family.bound(self.kind)
        )
        radius = self.design.radius
        products = triangles(rows)  # z z', shape (records, p (p + 1) / 2)
        gradients = residuals[:, np.newaxis] * rows
        hessians = weights[:, np.newaxis] * products * (sqrt(self.family.kappa) / radius)
        is_last_round = t == len(self.shares) - 1
        if not is_last_round:
            return np.hstack([gradients, hessians])
        squares = np.square(residuals)[:, np.newaxis]
        outer_products = squares * products * (sqrt(self.family.lam) / radius)
        return np.hstack([gradients, hessians, outer_products])

    def step_of(self, released: NoisyTotal) -> Step:
        """Return gradient and Hessian of a round, in the units of the target."""
        width = self.design.width
        bound = self.family.bound(self.kind)
        gradient = released.total[:width] * bound
        entries = released.total[width : width + self.triangle]
        scale = bound * self.design.radius / sqrt(self.family.kappa)
        matrix = matrix_of_triangle(entries, width) * scale
        curvature = Curvature(matrix, self._hessian_noise(released.noise))
        return Step(gradient, released.noise * bound, curvature)

    def scores_of(self, released: NoisyTotal) -> Floats:
        """Return the noisy sum of outer products of gradients in the last round, shape (p, p)."""
        width = self.design.width
        bound = self.family.bound(self.kind)
        entries = released.total[width + self.triangle :]
        scale = bound**2 * self.design.radius / sqrt(self.family.lam)
        return matrix_of_triangle(entries, width) * scale

    def coefficients(self, totals: Sequence[NoisyTotal]) -> Floats:
        """Return the coefficients of z after the steps of these rounds, from 0, shape (p,)."""
        coefficients = np.zeros(self.design.width)
        for released in totals:
            coefficients = rounded(coefficients + self.step_of(released).move)
        return coefficients

    def answer(self, totals: Sequence[NoisyTotal], records: int) -> Answer:
        """Return coefficients in the units of the columns, or why they are not shown."""
        coefficients = self.coefficients(totals)
        last = self.step_of(totals[-1])
        if not last.curvature.is_shown:
            return self.too_flat(last.curvature)
        noise_before = self.step_of(totals[-2]).gradient_noise
        excess = not_at_rest(last, noise_before)
        if excess > 1:
            reason = "the steps have not come to rest: effects are strong or the outcome is rare"
            return self.refused(f"{reason} ({excess:.2g} of what noise explains)", last.curvature)
        if self.design.largest_score(coefficients) > STEEPEST:
            reason = "the outcome is nearly determined by the terms (separation)"
            return self.refused(reason, last.curvature)
        covariances = errors(
            last.curvature, last.gradient_noise, last.move, self.scores_of(totals[-1])
        )
        skew = self.family.skew_of_constant
        if skew is None:  # in round 0 the scores are 0: the gradient's constant is n (mean - 1/2)
            first = self.step_of(totals[0])
            skew = abs(2 * float(first.gradient[0]) / records)
        # for rare outcomes the second-order error of the constant is not small: see Errors in
        # docs/privacy/regression.md
        noise = covariances.noise.copy()
        noise[0, 0] += second_order(last.curvature, last.move, skew) ** 2
        answer = self.shown(coefficients, covariances._replace(noise=noise), last.curvature, ())
        ratio = self.family.ratio
        ratios = [ratio_of(row, ratio) for row in answer.rows[1:]]
        spans = self.design.spans()[1:]
        for effect, span in zip(answer.effects, spans, strict=True):
            if span != 1:  # a number's ratio over its whole range, beside that of one unit
                ratios.append(ratio_of(effect, ratio))
        notes = [f"coefficients are differences of {self.family.scale}"]
        if isinstance(self.family, Poisson):
            bound = f"{self.family.bound(self.kind):g}"
            notes.append(f"counts beyond {bound} count as {bound}, and so do expected counts")
        return replace(answer, ratios=tuple(ratios), notes=(*notes, *answer.notes))

    @property
    def _effect_scale(self) -> str:
        """The scale of effects in words."""
        return f"difference in {self.family.scale}"


PER_UNIT = ", per unit"
"""End of the name of a number's coefficient."""


def over_ranges(rows: Sequence[Row], spans: Floats) -> tuple[Row, ...]:
    """Return coefficients on one scale: those of numbers are multiplied by the range's width.

    Parameters
    ----------
    rows
        Coefficients in the units of the columns, without the constant.
    spans
        Width of the range of each coefficient's column, shape (rows,).
    """
    effects = []
    for row, span in zip(rows, spans, strict=True):
        effect = row
        if row.name.endswith(PER_UNIT):
            effect = over_range(row, float(span))
        effects.append(effect)
    return tuple(effects)


def over_range(row: Row, span: float) -> Row:
    """Return the row of a number's coefficient, multiplied by the width of the number's range."""
    name = row.name.removesuffix(PER_UNIT) + ", over its range"
    return Row(
        name,
        span * row.estimate,
        span * row.noise,
        span * row.sampling,
        span * row.low,
        span * row.high,
        row.p_value,
    )


def ratio_of(row: Row, ratio: str) -> Row:
    """Return the row of the exponential of a coefficient: an odds ratio or a rate ratio."""
    estimate = _exponential(row.estimate)
    return Row(
        f"{ratio}, {row.name}",
        estimate=estimate,
        noise=estimate * row.noise,
        sampling=estimate * row.sampling,
        low=_exponential(row.low),
        high=_exponential(row.high),
        p_value=row.p_value,
    )


def _exponential(exponent: float) -> float:
    """Return the exponential of a number, clipped below overflow."""
    return exp(min(exponent, LARGEST_EXPONENT))


def rounded(coefficients: Floats) -> Floats:
    """Return coefficients as multiples of ``1 / ROUNDED_TO``."""
    return np.rint(coefficients * ROUNDED_TO) / ROUNDED_TO + 0.0  # + 0.0 turns -0.0 into 0.0


@dataclass(frozen=True, kw_only=True)
class Moments(_RegressionMethod):
    """Linear regression from second moments, and outer products of gradients if `robust`.

    Let z be the coded terms, and y the target scaled to [-1, 1]. In round 0 the vector of a record
    is the upper triangle of ``(z, y)(z, y)'``, and a flag for a clipped target. In round 1 it is
    the upper triangle of ``r^2 z z'`` over its largest norm, where r is the clipped residual.

    Parameters
    ----------
    robust
        True for a second round, which releases the outer products.
    """

    robust: bool = True
    hessian_round = 0

    @property
    def family_name(self) -> str:
        """The name of the family."""
        return LINEAR

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of its budget that each round has."""
        if self.robust:
            return LINEAR_SHARES
        return (1.0,)

    @property
    def largest_square(self) -> int:
        """Largest squared L2 norm L of (z, y): 1 each for constant, terms and target."""
        return 2 + len(self.design.kinds)

    @property
    def flag_weight(self) -> float:
        """Weight of the flag for a clipped target in a record's vector."""
        return self.largest_square / 2

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The public size of a record's vector in each round."""
        entries = self.design.width + 1
        numbers = entries * (entries + 1) // 2
        largest = self.largest_square
        # Without categories, the longest (z, y) have L entries, all 1 or -1. If L is odd, the inner
        # product of two of them is odd, and so not 0 (docs/privacy/regression.md).
        odd = 0 if self.design.has_categories else largest % 2
        distance = sqrt(2 * (largest**2 - odd) + self.flag_weight**2)
        norm = sqrt(largest**2 + self.flag_weight**2)
        moments = Size(numbers + 1, norm * SLACK, distance * SLACK)
        if not self.robust:
            return (moments,)
        return moments, Size(self.triangle, SLACK, sqrt(2) * SLACK)

    @property
    def largest_weight(self) -> float:
        """Largest weight of a record in the Hessian."""
        return 1.0

    def curvature_limit(self, noise: float) -> float:
        """Return the eigenvalue that all of the Hessian's must exceed for coefficients to be shown.

        `noise` is the standard deviation of the noise in each number of a round's total.
        """
        width = self.design.width
        return Curvature(np.zeros((width, width)), noise).limit

    def vectors(self, columns: Columns, t: int, totals: Sequence[NoisyTotal]) -> Floats:
        """Return the vector of each record in round t, shape (records, dim): see the class.

        Parameters
        ----------
        columns
            The cells of each column.
        t
            The round, 0 or 1.
        totals
            Noisy sums of the rounds before t.
        """
        column = columns[self.target]
        rows = self.design.rows(columns) * column.present[:, np.newaxis]  # z, shape (records, p)
        has_all_values = rows[:, 0]  # the constant: 1, or 0 where a value is missing
        targets = column.z * has_all_values
        if t == 0:
            low, high = ends(self.kind)
            numbers = np.nan_to_num(column.numbers, nan=low)
            is_clipped = ((numbers < low) | (numbers > high)) * has_all_values
            moments = triangles(np.column_stack([rows, targets]))
            return np.column_stack([moments, self.flag_weight * is_clipped])
        coefficients, residual_bound = self._predictor(totals[0])
        predictions = np.clip(rows @ coefficients, -1, 1)
        residuals = np.clip(targets - predictions, -residual_bound, residual_bound)
        scale = residual_bound**2 * self.design.radius**2
        return np.square(residuals)[:, np.newaxis] * triangles(rows) / scale

    def _predictor(self, released: NoisyTotal) -> tuple[Floats, float]:
        """Return the coefficients of z, and the clipping bound of residuals, from round 0."""
        moments = self.moments_of(released)
        if not moments.curvature.is_shown:
            return np.zeros(self.design.width), WIDEST_RESIDUAL
        deviation = sqrt(self._residual_variance(moments, moments.records))
        return moments.coefficients, min(WIDEST_RESIDUAL, FEW_DEVIATIONS * deviation)

    def moments_of(self, released: NoisyTotal) -> LinearMoments:
        """Return the parts of the noisy sum of round 0."""
        width = self.design.width
        second_moments = matrix_of_triangle(released.total[:-1], width + 1)  # of (z, y)
        return LinearMoments(
            curvature=Curvature(second_moments[:width, :width], released.noise),
            products=second_moments[:width, width],
            square=float(second_moments[width, width]),
            clipped=float(released.total[-1]) / self.flag_weight,
            clipped_noise=released.noise / self.flag_weight,
        )

    def _residual_variance(self, moments: LinearMoments, records: float) -> float:
        """Return the mean squared residual, ``(y'y - b'Z'y) / records`` at the coefficients b."""
        squared_residuals = moments.square - float(moments.products @ moments.coefficients)
        return max(squared_residuals / max(records, 1.0), LEAST_VARIANCE)

    def _mean(self, moments: LinearMoments, present: float) -> tuple[float, float]:
        """Return the mean of the clipped target, and the half-width of its 95% noise interval.

        Residuals sum to zero, except for noise, so that predictions have the same mean.

        Parameters
        ----------
        moments
            Parts of the noisy sum of round 0.
        present
            Number of records without missing values, perhaps noisy.
        """
        low, high = ends(self.kind)
        records = max(present, 1.0)
        mean = (low + high) / 2 + self._target_scale * float(moments.products[0]) / records
        # off the diagonal, the noise is smaller by sqrt(2): see `triangles`
        return mean, Z * self._target_scale * moments.curvature.noise / sqrt(2) / records

    @property
    def _target_scale(self) -> float:
        low, high = ends(self.kind)
        return (high - low) / 2

    def _shifted(self, coefficients: tuple[float, ...]) -> tuple[float, ...]:
        low, high = ends(self.kind)
        constant, *others = coefficients
        return (constant + (low + high) / 2, *others)

    @property
    def _effect_scale(self) -> str:
        """The scale of effects in words."""
        return f"difference in {self.target}"

    def answer(self, totals: Sequence[NoisyTotal], records: int) -> Answer:
        """Return coefficients in the units of the columns, or why they are not shown."""
        moments = self.moments_of(totals[0])
        curvature = moments.curvature
        if not curvature.is_shown:
            return self.too_flat(curvature)
        present = float(records)
        if self.design.may_be_missing or self.kind.may_be_missing:
            present = moments.records
        variance = self._residual_variance(moments, present)
        scores = None
        if self.robust:
            _, residual_bound = self._predictor(totals[0])
            entries = totals[1].total * (residual_bound**2 * self.design.radius**2)
            scores = matrix_of_triangle(entries, self.design.width)
        coefficients = rounded(moments.coefficients)
        product_noise = curvature.noise / sqrt(2)  # of z y, which is off the diagonal
        covariances = errors(curvature, product_noise, coefficients, scores, dispersion=variance)
        low, high = ends(self.kind)
        half = Z * moments.clipped_noise
        mean, mean_noise = self._mean(moments, present)
        clipped = f"{moments.clipped:,.0f} ± {half:,.0f}"
        if moments.clipped < half:  # there may be none
            clipped = f"at most {max(moments.clipped + half, 0.0):,.0f}"
        notes = [
            f"mean of the target {mean:.4g}, noise ± {mean_noise:.2g}: that of predictions, too",
            f"{clipped} of {records:,} targets lie outside {low:g} to {high:g} and count as its "
            "ends; totals are those of clipped values",
        ]
        if not self.robust:
            notes.append("assumes equal spread of residuals")
        return self.shown(coefficients, covariances, curvature, notes)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearMoments:
    """The parts of the noisy sum of ``(z, y)(z, y)'``, over records without missing values.

    Parameters
    ----------
    curvature
        Noisy sum of z z'.
    products
        Noisy sum of z y, shape (p,).
    square
        Noisy sum of y^2.
    clipped, clipped_noise
        Noisy number of clipped targets, and the standard deviation of its noise.
    """

    curvature: Curvature
    products: Floats
    square: float
    clipped: float
    clipped_noise: float

    @property
    def records(self) -> float:
        """Noisy number of records without missing values: the sum of squared constants."""
        return float(self.curvature.matrix[0, 0])

    @property
    def coefficients(self) -> Floats:
        """Least-squares coefficients of z, the solution of the normal equations, shape (p,)."""
        return np.asarray(np.linalg.solve(self.curvature.matrix, self.products))
