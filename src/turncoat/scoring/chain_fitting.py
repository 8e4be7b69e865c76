"""Learn all causes of fraud from labelled transactions (docs/chains.md).

Nothing about lengths, factors or shares is given. The chains of the customer and of each
counterparty and the scorecard take turns, each told how far the others explain a fraud.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import expit
from threadpoolctl import threadpool_limits

from turncoat.arrays import Array
from turncoat.data.splits import DAY, Split
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.features.batch import compute_causes, compute_intruder_risk
from turncoat.features.chains import INTRUDER, Chains, CompromiseChain, add_cause
from turncoat.features.history import TIME_CATEGORICAL, TIME_CONTINUOUS
from turncoat.features.split_panels import build_split_panel, select_visible
from turncoat.models.tuning import TrainingRows, sample_customers
from turncoat.panel import Panel, has_both_labels
from turncoat.scoring.causes import CauseScore, HeldOutRows
from turncoat.scoring.chain_pieces import ALL_PIECES, ChainPieces
from turncoat.scoring.compromise_fitting import (
    N_PHASES,
    LabelledSteps,
    choose_phases,
    fit_compromise,
)
from turncoat.scoring.intruder_fitting import CustomerRows, Profile, fit_intruder, fit_profile
from turncoat.scoring.profile_choice import choose_profile
from turncoat.scoring.rankers import build_ranker_matrix
from turncoat.scoring.scorecard import Scorecard

_MAX_COUNTERPARTY_ROWS = 60_000
_MAX_CARD_ROWS = 250_000
_N_ROUNDS = 2
_N_FOLDS = 2


class FittedCauses(NamedTuple):
    """Chains of both sides, and the scorecard of a transaction by itself."""

    chains: Chains
    scorecard: Scorecard


class LearntCauses(NamedTuple):
    """All that a detector learns of causes from a split."""

    chains: Chains
    score: CauseScore  # combined as the selection part says
    held_out: Array  # log odds of the selection rows of known label
    corrected: TrainingRows | None  # for trees that correct the score


def learn_causes(
    features: Features, transactions: Transactions, split: Split, seed: int, with_trees: bool
) -> LearntCauses:
    """Learn the causes from the fit part, and combine them on the selection part."""
    visible, _ = select_visible(transactions, split, "fit")
    with threadpool_limits(1, "blas"):  # matrices are small: more threads only wait for each other
        found = fit_causes(features, visible, seed)
        chained = features.add_chains(found.chains)
        score, held_out = combine_held_out(chained, found.scorecard, transactions, split)
        corrected = None
        if with_trees:
            corrected = build_corrected_rows(chained, score, transactions, split, seed)
    return LearntCauses(found.chains, score, held_out, corrected)


def fit_causes(
    features: Features, transactions: Transactions, seed: int = 0, pieces: ChainPieces = ALL_PIECES
) -> FittedCauses:
    """Learn all causes from these transactions; a side that shows nothing has no chain."""
    transactions.require_labels("learning the causes of fraud")
    rows, profile = CustomerRows.sample(transactions, seed), None
    panel = features.add_chains(None).transform(transactions)
    names = features.plan.counterparties
    known = [
        LabelledSteps.collect(transactions, name) if pieces.counterparty else None for name in names
    ]
    chains = Chains().expand(len(names))
    n_phases = [N_PHASES if pieces.phases else N_PHASES[:1]] * len(names)
    intruder_risk, compromise_risks = np.zeros(panel.n_rows), [np.zeros(panel.n_rows)] * len(names)
    # What the transaction by itself explains comes first: an intruder would explain it too.
    scorecard = fit_scorecard(features, panel, np.zeros(panel.n_rows), seed)
    for turn in range(_N_ROUNDS):
        others = list(chains.compromise)
        for place, steps in enumerate(known):
            if steps is not None and n_phases[place]:
                explained = _combine_others(intruder_risk, compromise_risks, place)
                learnt = _learn_compromise(steps, explained, n_phases[place], others[place])
                n_phases[place], others[place], compromise_risks[place] = learnt
        chains = replace(chains, compromise=tuple(others))
        row_risk = expit(scorecard.score(panel.continuous, panel.categorical))
        explained, waits = combine_causes(*compromise_risks, row_risk), features.plan.label_times
        if turn == 0:
            columns = features.profile or choose_profile(transactions, explained, waits, seed)
            rows = rows.add_columns(transactions, columns)
            rows = rows.select_columns(rows.find_known())
            profile = fit_profile(rows, pieces) if rows.names else None
        if profile is not None:
            own = fit_intruder(rows, profile, explained[rows.places], waits, pieces)
            chains = replace(chains, intruder=own)
            plan = features.add_chains(Chains(chains.intruder)).plan
            intruder_risk = compute_intruder_risk(plan, transactions)
        explained = combine_causes(intruder_risk, *compromise_risks)
        scorecard = fit_scorecard(features, panel, explained, seed)
    return FittedCauses(chains, scorecard)


def _combine_others(intruder_risk: Array, compromise_risks: Sequence[Array], place: int) -> Array:
    """How far the intruder and all counterparties but one explain a fraud [N]."""
    explained = intruder_risk
    for other, risk in enumerate(compromise_risks):
        if other != place:
            explained = add_cause(explained, risk)
    return explained


def _learn_compromise(
    steps: LabelledSteps, explained: Array, n_phases: tuple[int, ...], start: CompromiseChain | None
) -> tuple[tuple[int, ...], CompromiseChain | None, Array]:
    """The number of phases out of these, the chain, and its risk of every row with hindsight."""
    frauds = steps.sample(_MAX_COUNTERPARTY_ROWS).weigh(explained)
    chosen = choose_phases(frauds, n_phases)
    if not chosen:
        return (), None, np.zeros(len(explained))
    chain = fit_compromise(frauds, chosen[0], start=start)
    return chosen, chain, steps.weigh(explained).smooth(chain)


def combine_held_out(
    features: Features, scorecard: Scorecard, transactions: Transactions, split: Split
) -> tuple[CauseScore, Array]:
    """The score of the causes, combined as the selection part says, and its log odds there.

    `features` have the chains. Rows of unknown label are left out; without any others the causes
    combine as independent ones.
    """
    score, rows = CauseScore(scorecard), split.selection
    rows = rows[np.asarray(transactions.labels)[rows] >= 0]
    if len(rows) == 0:
        return score, np.empty(0)
    panel, places = build_split_panel(features, transactions, split, "selection", rows)
    cells = panel.continuous[places], panel.categorical[places], np.asarray(panel.causes)[places]
    known = np.asarray(transactions.labels)[rows], transactions.customer_codes[rows]
    score = score.choose_combination(HeldOutRows(*cells, *known))
    return score, score.score(*cells)


def build_corrected_rows(
    features: Features, score: CauseScore, transactions: Transactions, split: Split, seed: int
) -> TrainingRows:
    """The fit and selection parts for trees that start from the log odds of the causes.

    The log odds of a fit row come from densities and a scorecard that were learnt without its
    customer, so that no tree sees what its own label taught.
    """
    rows = np.union1d(split.fit, split.selection)
    rows = rows[np.asarray(transactions.labels)[rows] >= 0]
    visible, own = select_visible(transactions, split, "selection", rows)
    panel = features.transform(visible)
    cells = panel.continuous, panel.categorical
    margins = score.score(*cells, np.asarray(panel.causes))
    seen, _ = select_visible(transactions, split, "fit")
    folds = np.random.default_rng(seed).integers(_N_FOLDS, size=len(transactions.customers))
    fit_rows = own[np.isin(rows, split.fit)]
    for fold in range(_N_FOLDS):
        others = seen.take(folds[seen.customer_codes] != fold)
        if not has_both_labels(np.asarray(others.labels)):
            continue
        chains, scorecard = _relearn(features, score, others, seed)
        held_out = compute_causes(features.add_chains(chains).plan, visible)
        found = replace(score, scorecard=scorecard).score(*cells, held_out)
        held_out_rows = fit_rows[folds[visible.customer_codes[fit_rows]] == fold]
        margins[held_out_rows] = found[held_out_rows]
    columns = build_ranker_matrix(panel.continuous[own], panel.categorical[own])
    known = np.asarray(transactions.labels)[rows], transactions.customer_codes[rows]
    days, is_selection = transactions.times[rows] / DAY, np.isin(rows, split.selection)
    return TrainingRows(columns, *known, days, is_selection, margins[own])


def _relearn(
    features: Features, score: CauseScore, transactions: Transactions, seed: int
) -> FittedCauses:
    """The densities of surprises and the scorecard, learnt anew; rates start from the chains'."""
    chains = features.plan.all_chains
    own = chains.intruder
    panel = features.add_chains(Chains(own)).transform(transactions)
    intruder_risk = np.asarray(panel.causes)[:, INTRUDER]
    compromise_risks = [np.zeros(panel.n_rows)] * len(chains.compromise)
    for place, other in enumerate(chains.compromise):
        steps = LabelledSteps.collect(transactions, features.plan.counterparties[place])
        if steps is not None and other is not None:
            explained = _combine_others(intruder_risk, compromise_risks, place)
            compromise_risks[place] = steps.weigh(explained).smooth(other)
    if own is not None:
        rows = CustomerRows.sample(transactions, seed).add_columns(transactions, own.columns)
        profile = Profile(own.scales, own.units, own.priors)
        row = expit(score.scorecard.score(panel.continuous, panel.categorical))
        explained = combine_causes(*compromise_risks, row)[rows.places]
        own = fit_intruder(rows, profile, explained, features.plan.label_times)
        plan = features.add_chains(Chains(own)).plan
        intruder_risk = compute_intruder_risk(plan, transactions)
    explained = combine_causes(intruder_risk, *compromise_risks)
    scorecard = fit_scorecard(features, panel, explained, seed)
    return FittedCauses(replace(chains, intruder=own), scorecard)


def combine_causes(*risks: Array) -> Array:
    """The probability that at least one of independent causes makes a transaction fraud."""
    safe: Array = np.ones(1)
    for risk in risks:
        safe = safe * (1.0 - risk)
    return 1.0 - safe


def fit_scorecard(features: Features, panel: Panel, others: Array, seed: int) -> Scorecard:
    """A scorecard on the transaction's own columns; chains account for its history."""
    labels = np.asarray(panel.labels)
    known = np.flatnonzero(labels >= 0)
    customers = np.repeat(np.arange(panel.n_sequences), panel.lengths)[known]
    known = known[sample_customers(labels[known] == 1, customers, _MAX_CARD_ROWS, seed)]
    plan = features.plan
    history = {*plan.engineered_continuous, *plan.engineered_categorical}
    history -= {*TIME_CONTINUOUS, *TIME_CATEGORICAL}
    usable = np.array([name not in history for name in (*plan.continuous, *plan.categorical)])
    cells = panel.continuous[known], panel.categorical[known]
    return Scorecard.fit(*cells, labels[known], others[known], usable)
