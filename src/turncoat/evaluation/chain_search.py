"""Search a chain for the champion: its features, its number of states, its seed.

Features come in the order of a quick booster's gain. How many, and the number of states, is decided
by average precision on the selection part, with evidence weights learnt on some customers and
applied to others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score

from turncoat.arrays import Array
from turncoat.data.splits import Split
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.features.split_panels import build_fit_panel, build_split_panel
from turncoat.models import tuning
from turncoat.models.tuning import DEFAULT_PARAMS, TrainingRows, sample_customers
from turncoat.models.variational import VariationalHMM
from turncoat.numerics.engine import available_threads
from turncoat.panel import Panel
from turncoat.scoring import Anchoring
from turncoat.scoring.chain import ChainFit, SelectionRows
from turncoat.scoring.rankers import build_ranker_matrix
from turncoat.scoring.supervision import compute_anchor_likelihoods

Announce = Callable[[str], None]

N_FEATURES = (8, 4, 16, 32)  # of the chain; the first is tried with every number of states
N_STATES = ((12, 6), (20, 10), (6, 3))  # all, and those of fraud
N_SEEDS = 3
MAX_ITERATIONS = 60
CHAIN_ROWS = 60_000  # of the fit part, and of the selection part with its history
ORDERING_ROWS = 60_000
_QUICK = {**DEFAULT_PARAMS, "learning_rate": 0.1, "n_estimators": 100, "max_bin": 1024}


@dataclass(frozen=True)
class Effort:
    """How long a choice may take, and whom it tells what it does."""

    seed: int
    started: float  # by `time.monotonic`
    budget_s: float
    max_trials: int
    announce: Announce

    def find_deadline(self, share: float) -> float:
        """When this share of the budget is spent."""
        return self.started + share * self.budget_s


class ChainTrial(NamedTuple):
    """A chain that was tried, and its average precision on the selection part."""

    n_features: int
    n_states: int
    n_fraud_states: int
    seed: int
    average_precision: float


@dataclass
class ChainSearch:
    """Tries chains on a sample of the fit and selection parts."""

    transactions: Transactions
    split: Split
    features: Features  # fitted
    effort: Effort
    trials: list[ChainTrial] = field(default_factory=list)

    def run(self, share: float) -> tuple[ChainFit, Any]:
        """The best chain that a share of the budget finds, and its fitted model."""
        seed = self.effort.seed
        fit_panel = build_fit_panel(self.features, self.transactions, self.split)
        order = self._order_features(fit_panel)
        fit_panel = sample_panel(fit_panel, CHAIN_ROWS, seed)
        selection = self._sample_selection()
        sizes = [n for n in N_FEATURES if n < len(order)] or [len(order)]
        if len(sizes) < len(N_FEATURES):
            sizes.append(len(order))
        best: tuple[float, ChainFit, Any] | None = None

        def attempt(n_features: int, states: tuple[int, int], seed: int) -> None:
            nonlocal best
            n_tried = len(self.trials)
            is_late = time.monotonic() > self.effort.find_deadline(share)
            if n_tried >= max(self.effort.max_trials, 1) or (n_tried and is_late):
                return
            is_used = np.zeros(len(order))
            is_used[order[:n_features]] = 1.0
            chain = _make_chain(is_used.tolist(), states, seed)
            text = f"chain {n_tried + 1}: {n_features} features, {states[0]} regimes"
            self.effort.announce(text)
            model = chain.fit(fit_panel, selection)
            value = score_held_out(chain, model, selection)[1]
            self.trials.append(ChainTrial(n_features, *states, seed, value))
            if best is None or value > best[0]:
                best = value, chain, model

        for states in N_STATES:
            attempt(sizes[0], states, seed)
        chosen = self.best
        for n_features in sizes[1:]:
            attempt(n_features, (chosen.n_states, chosen.n_fraud_states), seed)
        chosen = self.best
        for more in range(1, N_SEEDS):
            attempt(chosen.n_features, (chosen.n_states, chosen.n_fraud_states), seed + more)
        assert best is not None  # the first attempt is always made
        return best[1], best[2]

    @property
    def best(self) -> ChainTrial:
        """The trial with the highest average precision."""
        return max(self.trials, key=lambda one: one.average_precision)

    def select_known(self) -> SelectionRows:
        """The selection rows of known label."""
        rows = self.split.selection
        rows = rows[np.asarray(self.transactions.labels)[rows] >= 0]
        parts = self.features, self.transactions, self.split, "selection"
        return SelectionRows(*build_split_panel(*parts, rows))

    def _order_features(self, panel: Panel) -> Array:
        """All columns of the panel, by the total gain of a quick booster on fit rows."""
        self.effort.announce("ordering features")
        panel = sample_panel(panel, ORDERING_ROWS, self.effort.seed)
        labels = np.asarray(panel.labels)
        rows = np.flatnonzero(labels >= 0)
        columns = build_ranker_matrix(panel.continuous[rows], panel.categorical[rows])
        unused = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows), bool)
        training = TrainingRows(columns, labels[rows], *unused)
        booster = tuning.fit_booster(_QUICK, training, self.effort.seed, available_threads())
        gains = booster.get_score(importance_type="total_gain")
        values = np.array([gains.get(f"f{i}", 0.0) for i in range(columns.shape[1])])
        return np.argsort(-values, kind="stable")

    def _sample_selection(self) -> SelectionRows:
        selection = self.select_known()
        panel, is_place = selection.panel, np.zeros(selection.panel.n_rows, bool)
        is_place[selection.places] = True
        kept = _sample_sequences(
            panel, is_place & (panel.labels == 1), CHAIN_ROWS, self.effort.seed
        )
        others = np.setdiff1d(np.arange(panel.n_sequences), kept)
        return selection.drop_customers(np.asarray(panel.customers)[others])


def _make_chain(weights: list[float], states: tuple[int, int], seed: int) -> ChainFit:
    options: dict[str, Any] = {"random_state": seed, "progress": False, "n_restarts": 1}
    options |= {"max_iter": MAX_ITERATIONS, "emission": "robust", "weights": weights}
    return ChainFit(
        VariationalHMM(states[0], **options), Anchoring(states[1]), weighs_evidence=True
    )


def score_held_out(chain: ChainFit, model: Any, selection: SelectionRows) -> tuple[Array, float]:
    """P(fraud) of the selection rows, with weights learnt on other customers; average precision."""
    assert chain.anchoring is not None
    likelihoods = compute_anchor_likelihoods(chain.anchoring, model.n_states)
    panel, places = selection.panel, selection.places
    labels = np.asarray(panel.labels)[places]
    scores = model.filter(panel).probs[places] @ likelihoods[1]
    folds = np.arange(panel.n_sequences) % 2
    for fold in (0, 1) if panel.n_sequences > 1 else ():  # one customer has no other
        own = np.asarray(panel.customers)[folds == fold]
        weighted = chain.reweigh(model, selection.drop_customers(own))
        probs = weighted.filter(panel).probs[places] @ likelihoods[1]
        is_own = np.repeat(folds == fold, panel.lengths)[places]
        scores[is_own] = probs[is_own]
    return scores, float(average_precision_score(labels, scores))


def sample_panel(panel: Panel, n_rows: int, seed: int) -> Panel:
    """About `n_rows` of a panel, of whole customers, with fraud in proportion."""
    if panel.n_rows <= n_rows:
        return panel
    return panel[_sample_sequences(panel, np.asarray(panel.labels) == 1, n_rows, seed)]


def _sample_sequences(panel: Panel, is_fraud: Array, n_rows: int, seed: int) -> Array:
    """Customers with about `n_rows`, those with and without fraud in proportion."""
    customers = np.repeat(np.arange(panel.n_sequences), panel.lengths)
    return np.unique(customers[sample_customers(is_fraud, customers, n_rows, seed)])
