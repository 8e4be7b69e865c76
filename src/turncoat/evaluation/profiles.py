"""Regimes in words: what a transaction of each looks like beside all others."""

from __future__ import annotations

import numpy as np

from turncoat.arrays import Array
from turncoat.evaluation.metrics import or_none
from turncoat.evaluation.results import RegimeRow, RegimeTable
from turncoat.features.plan import FeaturePlan
from turncoat.panel import Panel
from turncoat.scoring import Detector

_MOST_WORDS = 6
_LEAST_SPREADS = 0.3  # a mean nearer than this to that of all transactions says little
_LEAST_SHARE = 0.05


def regime_table(name: str, detector: Detector, panel: Panel, saturation: float) -> RegimeTable:
    """The regimes of a fitted detector, measured on calibration customers, whose panel tells what an encoder's regimes look like."""
    regimes, parts = detector.regimes, detector.calibration_
    low, high = regimes.interval()
    means, shares = _looks(detector, panel)
    words = _words(detector, means, shares)
    rows = tuple(
        RegimeRow(
            number=k,
            share=float(regimes.occupancy[k]),
            fraud_rate=float(regimes.mean_rates[k]),
            lower=float(low[k]),
            upper=float(high[k]),
            enrichment=or_none(float(regimes.enrichment[k])),
            stickiness=float(regimes.stickiness[k]),
            words=words[k],
        )
        for k in range(regimes.n_states)
    )
    return RegimeTable(
        candidate=name,
        measured=f"{regimes.part} part, {regimes.mode}, held out",
        fraud_regime=regimes.fraud_state,
        temperature=float(detector.model_.temperature),
        temporal_share=parts.temporal_share,
        misread_share=regimes.misread_share,
        signed_gap=regimes.signed_gap,
        saturation=saturation,
        rows=rows,
        transition=tuple(
            tuple(map(float, row)) for row in detector.model_.params_.transition_matrix
        ),
    )


def _looks(detector: Detector, panel: Panel) -> tuple[Array, list[Array]]:
    """Mean of every continuous column [K, D] and shares of every column's names [K, C] in each regime.

    They are the model's own parameters; where an encoder comes first, averages over the panel's filtered beliefs.
    """
    model = detector.model_
    if model.to_latent_hmm() is model:
        return model.params_.means, list(model.params_.category_probs)
    belief = model.filter(panel).probs
    there = ~np.isnan(panel.continuous)
    weight = belief.T @ there
    means = np.divide(
        belief.T @ np.where(there, panel.continuous, 0.0),
        weight,
        out=np.zeros_like(weight),
        where=weight > 0,
    )
    shares = []
    for j, size in enumerate(panel.n_categories):
        codes = panel.categorical[:, j]
        counts = np.stack([belief[codes == code].sum(axis=0) for code in range(size)], axis=1)
        shares.append(
            np.divide(
                counts,
                counts.sum(axis=1, keepdims=True),
                out=np.zeros_like(counts),
                where=counts.sum(axis=1, keepdims=True) > 0,
            )
        )
    return means, shares


def _words(detector: Detector, means: Array, category_shares: list[Array]) -> list[tuple[str, ...]]:
    """For each regime, the features that set it apart, the strongest first."""
    plan, shares = detector.features_.plan, detector.regimes.occupancy
    told: list[list[tuple[float, str]]] = [[] for _ in shares]
    for d, name in enumerate(plan.continuous):
        for k, mean in enumerate(
            means[:, d]
        ):  # on a scale where all transactions have mean 0 and spread 1
            if abs(mean) >= _LEAST_SPREADS:
                side = "above" if mean > 0 else "below"
                how = "far " if abs(mean) >= 2 else "" if abs(mean) >= 1 else "somewhat "
                told[k].append(
                    (abs(float(mean)), f"{name}: {how}{side} the average ({mean:+.1f} spreads)")
                )
    for name, probs in zip(plan.categorical, category_shares, strict=True):
        overall = shares @ probs
        for k in range(len(shares)):
            code = int(np.argmax(np.abs(probs[k] - overall)))
            moved = float(probs[k, code] - overall[code])
            if abs(moved) >= _LEAST_SHARE:
                text = f"{name} is {_name(plan, name, code)}: {probs[k, code]:.0%} against {overall[code]:.0%} overall"
                told[k].append((4 * abs(moved), text))
    return [tuple(text for _, text in sorted(one, reverse=True)[:_MOST_WORDS]) for one in told]


def _name(plan: FeaturePlan, feature: str, code: int) -> str:
    """A code in words."""
    if feature in plan.schema.categorical:
        vocabulary = plan.vocabularies[plan.schema.categorical.index(feature)]
        if code < len(vocabulary.frequent):
            return repr(vocabulary.frequent[code])
        return "a rare name" if code == len(vocabulary.frequent) else "a new name"
    return f"day {code + 1}" if feature == "weekday" else "yes" if code else "no"
