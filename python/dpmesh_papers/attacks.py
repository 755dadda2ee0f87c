"""Membership inference attacks: telling records of the training data from others.

An attack gives every candidate record a score, higher for likely members of the training data. Its
receiver operating characteristic has the share of members that it finds over the share of others
that it takes for members; the area under the curve (AUC) is 1/2 for guessing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from dpmesh._arrays import floats, unmasked
from dpmesh._validate import fail, positive, probability

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class MembershipAttack:
    """The receiver operating characteristic of an attack.

    Parameters
    ----------
    fpr, tpr
        False and true positive rates, shapes (thresholds + 1,): the share of the others and of the
        members that score at least a threshold, ascending from 0 to 1.
    auc
        Area under the curve: the probability that a random member scores higher than a random
        other, ties counted half.
    """

    fpr: Floats
    tpr: Floats
    auc: float

    def tpr_at(self, fpr: float) -> float:
        """Return the true positive rate at a false positive rate of at most `fpr`, in [0, 1]."""
        probability("fpr", fpr)
        return float(self.tpr[np.searchsorted(self.fpr, fpr, side="right") - 1])


def scored(members: npt.ArrayLike, others: npt.ArrayLike) -> MembershipAttack:
    """Return the curve of an attack from its scores.

    Parameters
    ----------
    members, others
        Scores, shapes (members,) and (others,), higher for likely members.

    Raises
    ------
    ValueError
        If there are none, or one is NaN.
    """
    member_scores = _scores("members", members)
    other_scores = _scores("others", others)
    all_scores = np.concatenate([member_scores, other_scores])
    thresholds = np.unique(all_scores)[::-1]
    count = len(member_scores)
    member_ranks = stats.rankdata(all_scores)[:count]
    wins = member_ranks.sum() - count * (count + 1) / 2  # Mann and Whitney's statistic
    return MembershipAttack(
        fpr=_positive_rates(other_scores, thresholds),
        tpr=_positive_rates(member_scores, thresholds),
        auc=float(wins / (count * len(other_scores))),
    )


def _positive_rates(scores: Floats, thresholds: Floats) -> Floats:
    """Return 0, then the share of the scores that are at least each of the falling thresholds."""
    below = np.searchsorted(np.sort(scores), thresholds)
    return np.concatenate(([0.0], (len(scores) - below) / len(scores)))


def threshold_attack(member_losses: npt.ArrayLike, other_losses: npt.ArrayLike) -> MembershipAttack:
    """Call records of small loss members (Yeom et al., 2018): section 6.4 of the federated paper.

    Parameters
    ----------
    member_losses, other_losses
        The model's loss on records that it was trained on, and on others of the same kind.

    Raises
    ------
    ValueError
        If there are none, or one is NaN.
    """
    checked_members = _scores("member_losses", member_losses)
    checked_others = _scores("other_losses", other_losses)
    return scored(-checked_members, -checked_others)


def likelihood_ratio_attack(
    losses: npt.ArrayLike,
    is_member: npt.ArrayLike,
    shadow_losses: npt.ArrayLike,
    shadow_members: npt.ArrayLike,
    *,
    least_spread: float = 1e-3,
) -> MembershipAttack:
    """Compare each record's loss with those of models trained with and without it (LiRA).

    For each record two normal distributions are fitted to the shadow models' log-odds of the true
    label, ``log(p / (1 - p))`` with ``p = exp(-loss)``: one for the models trained with it, one for
    the others. The score is the logarithm of the ratio of their densities at the attacked model's
    log-odds (Carlini et al., "Membership Inference Attacks From First Principles", 2022).

    Parameters
    ----------
    losses
        The attacked model's cross-entropy on each record, shape (records,).
    is_member
        True for the records that it was trained on, shape (records,): the ground truth.
    shadow_losses
        The shadow models' losses, shape (models, records).
    shadow_members
        True for the records that each shadow model was trained on, shape (models, records); every
        record needs models of both kinds.
    least_spread
        Lower bound on the fitted standard deviations, greater than 0.

    Raises
    ------
    ValueError
        If shapes do not fit, a loss is negative or not finite, or a record lacks models of one
        kind.
    """
    log_odds = _log_odds("losses", losses, ndim=1)
    shadow_log_odds = _log_odds("shadow_losses", shadow_losses, ndim=2)
    members = _flags("is_member", is_member, log_odds.shape)
    shadow_membership = _flags("shadow_members", shadow_members, shadow_log_odds.shape)
    least_spread = positive("least_spread", least_spread)
    if shadow_log_odds.shape[1:] != log_odds.shape:
        fail("shadow_losses", f"shape (models, {len(log_odds)})", f"shape {shadow_log_odds.shape}")
    if not shadow_membership.any(axis=0).all() or shadow_membership.all(axis=0).any():
        fail("shadow_members", "models with and without each record", "a record that lacks a kind")

    def log_density(models: npt.NDArray[np.bool_]) -> Floats:
        """Return each record's log density under the normal fit to some of the shadow models."""
        mean = shadow_log_odds.mean(axis=0, where=models)
        spread = np.maximum(shadow_log_odds.std(axis=0, where=models), least_spread)
        return np.asarray(stats.norm.logpdf(log_odds, mean, spread))

    scores = log_density(shadow_membership) - log_density(~shadow_membership)
    return scored(scores[members], scores[~members])


def _log_odds(argument: str, losses: npt.ArrayLike, *, ndim: int) -> Floats:
    """Return log(p / (1 - p)) of the true label's probability p = exp(-loss)."""
    array = floats(argument, losses, ndim).astype(np.float64)
    if not ((array >= 0) & np.isfinite(array)).all():
        fail(argument, "finite cross-entropies of at least 0", "a negative number, infinity or NaN")
    positive_losses = np.clip(array, 1e-12, None)  # finite where a model is certain
    return np.asarray(-array - special.log1p(-np.exp(-positive_losses)))


def _scores(argument: str, values: npt.ArrayLike) -> Floats:
    scores = floats(argument, values, ndim=1).astype(np.float64)
    if np.isnan(scores).any():
        fail(argument, "numbers", "NaN")
    return scores


def _flags(argument: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    flags = unmasked(argument, values)
    if flags.dtype != np.bool_ or flags.shape != shape:
        fail(argument, f"booleans of shape {shape}", f"{flags.dtype} of shape {flags.shape}")
    return flags
