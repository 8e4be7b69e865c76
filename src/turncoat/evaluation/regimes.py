"""Regimes in numbers: what sets each apart, and what the fraud regime holds on test rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import DAY
from turncoat.evaluation.bootstrap import percentile_interval
from turncoat.evaluation.metrics import ScoredLabels, mean_of_known, or_none
from turncoat.evaluation.results import RegimeRow, RegimeTable, RegimeTrait, TierRow
from turncoat.features.plan import FeaturePlan
from turncoat.panel import Panel
from turncoat.scoring import Detector
from turncoat.scoring.formatting import NO_CALENDAR, Clock

_MAX_TRAITS = 6
_MIN_DEVIATION = 0.3  # standard deviations; a mean nearer to the overall mean says little
_MIN_SHARE_CHANGE = 0.05
_SHARE_WEIGHT = 4.0  # ranks a change of share against a deviation


def describe_regimes(name: str, detector: Detector, panel: Panel, saturation: float) -> RegimeTable:
    """The regimes of a fitted detector; `panel` holds the calibration customers."""
    regimes = detector.regimes
    low, high = regimes.interval()
    traits = _find_traits(detector, *_regime_means(detector, panel))
    columns = (regimes.occupancy, regimes.mean_rates, low, high)
    rows = []
    for k in range(regimes.n_states):
        share, rate, lower, upper = (float(column[k]) for column in columns)
        enrichment, stickiness = or_none(regimes.enrichment[k]), float(regimes.stickiness[k])
        rows.append(RegimeRow(k, share, rate, lower, upper, enrichment, stickiness, traits[k]))
    matrix = detector.model_.average_transitions(panel)
    return RegimeTable(
        detector=name,
        measured_on=f"{regimes.part} part, {regimes.mode}, held out",
        fraud_regime=regimes.fraud_state,
        temperature=float(detector.model_.temperature),
        temporal_share=detector.calibration_.temporal_share,
        misread_share=regimes.misread_share,
        signed_gap=regimes.signed_gap,
        saturation=saturation,
        rows=tuple(rows),
        transition_matrix=tuple(tuple(map(float, row)) for row in matrix),
    )


def _regime_means(detector: Detector, panel: Panel) -> tuple[Array, list[Array]]:
    """Means [K, D], the model's or over beliefs behind an encoder; category shares [K, C].

    Shares are of all rows, those without a value too. The model's own would show its prior where a
    column is nearly always empty.
    """
    model = detector.model_
    belief = model.filter(panel).probs
    shares = []
    for j, size in enumerate(panel.n_categories):
        codes = panel.categorical[:, j]
        counts = np.stack([belief[codes == code].sum(axis=0) for code in range(size)], axis=1)
        shares.append(_divide(counts, belief.sum(axis=0)[:, None]))
    if model.to_latent_hmm() is model:
        return model.params_.means, shares
    is_known = ~np.isnan(panel.continuous)
    sums = belief.T @ np.where(is_known, panel.continuous, 0.0)
    return _divide(sums, belief.T @ is_known), shares


def _divide(sums: Array, weights: Array) -> Array:
    """sums / weights; 0 where there is no weight."""
    return np.asarray(np.divide(sums, weights, out=np.zeros_like(sums), where=weights > 0))


def _find_traits(
    detector: Detector, means: Array, category_shares: list[Array]
) -> list[tuple[RegimeTrait, ...]]:
    """For each regime the features that set it apart, strongest first; means are in SDs."""
    plan, occupancy = detector.features_.plan, detector.regimes.occupancy
    # Codes of weekdays count days of the local clock from 1970, or from the file's start.
    clock = Clock() if detector.live.has_calendar_times else NO_CALENDAR
    found: list[list[tuple[float, RegimeTrait]]] = [[] for _ in occupancy]
    for d, name in enumerate(plan.continuous):
        for k, mean in enumerate(map(float, means[:, d])):
            if abs(mean) >= _MIN_DEVIATION:
                found[k].append((abs(mean), RegimeTrait(name, mean)))
    for name, probs in zip(plan.categorical, category_shares, strict=True):
        overall = occupancy @ probs
        for k in range(len(occupancy)):
            code = int(np.argmax(np.abs(probs[k] - overall)))
            share, base = float(probs[k, code]), float(overall[code])
            if abs(share - base) >= _MIN_SHARE_CHANGE:
                category = name_category(plan, name, code, clock)
                trait = RegimeTrait(name, share, category, base)
                found[k].append((_SHARE_WEIGHT * abs(share - base), trait))
    ranked = (sorted(one, key=lambda pair: pair[0], reverse=True) for one in found)
    return [tuple(trait for _, trait in one[:_MAX_TRAITS]) for one in ranked]


def name_category(plan: FeaturePlan, feature: str, code: int, clock: Clock) -> str:
    """A category in words: a value of the file, a weekday, or yes and no."""
    if feature in plan.schema.categorical:
        vocabulary = plan.vocabularies[plan.schema.categorical.index(feature)]
        if code < len(vocabulary.frequent):
            return repr(vocabulary.frequent[code])
        return "a rare value" if code == len(vocabulary.frequent) else "a new value"
    if feature == "weekday":
        return clock.format_weekday(code * DAY)
    return "yes" if code else "no"


def measure_tier(
    name: str,
    candidate: str,
    n_states: int,
    chosen_by: str,
    latent_dim: int | None,
    memberships: Sequence[Sequence[ScoredLabels]],
    *,
    n_resamples: int,
    seed: int,
) -> TierRow:
    """What a fraud regime holds, by test beliefs in it (raw, filtered scores) by seed and fold."""
    values, resampled = [], []
    for folds in memberships:
        for f, scored in enumerate(folds):
            sums = _sum_by_customer(scored)
            values.append(_tier_figures(sums.sum(axis=0)[None])[0])
            rng = np.random.default_rng([seed, f])  # the same customers for every detector and seed
            n_customers = len(sums)
            draws = (rng.integers(n_customers, size=n_customers) for _ in range(n_resamples))
            resampled.append(_tier_figures(np.stack([sums[rows].sum(axis=0) for rows in draws])))
    means = mean_of_known(np.array(values), axis=0)
    columns = mean_of_known(np.array(resampled), axis=0).T
    figures: Any = (*map(or_none, means), *map(percentile_interval, columns))
    return TierRow(name, candidate, n_states, chosen_by, latent_dim, *figures)


def _sum_by_customer(scored: ScoredLabels) -> Array:
    """Rows, membership, membership of frauds and frauds of every customer [U, 4]."""
    _, codes = np.unique(scored.customers, return_inverse=True)
    scores, labels = scored.scores, scored.labels
    columns = (np.ones(len(scored)), scores, scores * labels, labels)
    return np.stack([np.bincount(codes, column) for column in columns], axis=1)


def _tier_figures(sums: Array) -> Array:
    """Occupancy, fraud rate, captured fraud and enrichment [R, 4] of sums [R, 4]; may be NaN."""
    rows, members, caught, frauds = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = caught / members
        enrichment = np.where(frauds > 0, rate / (frauds / rows), np.nan)
        return np.stack([members / rows, rate, caught / frauds, enrichment], axis=1)
