"""Membership inference: telling records of the training data from others.

An attack gives every candidate a score, higher for likely members. Its curve shows how many members
it finds at each rate of false alarms; the area under it is 1/2 for guessing.
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
        Share of the others and of the members that score at least each threshold, ascending from 0
        to 1.
    auc
        Area under the curve: the probability that a random member scores higher than a random
        other, ties counted half.
    """

    fpr: Floats
    tpr: Floats
    auc: float

    def tpr_at(self, fpr: float) -> float:
        """Return the share of members found at no more than this rate of false alarms."""
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
    thresholds = np.unique(np.concatenate([member_scores, other_scores]))[::-1]
    rates = [
        (len(scores) - np.searchsorted(np.sort(scores), thresholds)) / len(scores)
        for scores in (other_scores, member_scores)
    ]
    fpr, tpr = (np.concatenate(([0.0], rate)) for rate in rates)
    ranks = stats.rankdata(np.concatenate([member_scores, other_scores]))[: len(member_scores)]
    wins = ranks.sum() - len(member_scores) * (len(member_scores) + 1) / 2
    pairs = len(member_scores) * len(other_scores)
    return MembershipAttack(fpr=fpr, tpr=tpr, auc=float(wins / pairs))


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
    densities = []
    for trained in (shadow_membership, ~shadow_membership):
        mean = shadow_log_odds.mean(axis=0, where=trained)
        spread = np.maximum(shadow_log_odds.std(axis=0, where=trained), least_spread)
        densities.append(stats.norm.logpdf(log_odds, mean, spread))
    scores = densities[0] - densities[1]
    return scored(scores[members], scores[~members])


def _log_odds(argument: str, losses: npt.ArrayLike, *, ndim: int) -> Floats:
    array = floats(argument, losses, ndim).astype(np.float64)
    if not ((array >= 0) & np.isfinite(array)).all():
        fail(argument, "finite cross-entropies of at least 0", "a negative number, infinity or NaN")
    # log(p / (1 - p)) at p = exp(-loss), kept finite where a model is certain
    return np.asarray(-array - special.log1p(-np.exp(-np.clip(array, 1e-12, None))))


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
