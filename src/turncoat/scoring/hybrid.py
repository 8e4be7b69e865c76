"""Trees of a detector: fitted on its features and, for a hybrid, on the customer's path.

No booster is trained on beliefs of a model that has seen the label of that row. An unsupervised
model has seen none. Otherwise the rows that the model was fitted on get the beliefs of models
fitted without their customers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import DAY, Split
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, require_extra
from turncoat.features import Features
from turncoat.features.split_panels import build_fit_panel, build_split_panel
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.boosting import BoostedTrees
from turncoat.models.neural.encoder import Encoder
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.parameters import align_states
from turncoat.models.tuning import TrainingRows
from turncoat.panel import Panel
from turncoat.scoring.chain import ChainFit, SelectionRows
from turncoat.scoring.path import filter_path_columns
from turncoat.scoring.rankers import build_ranker_matrix

Model = HiddenMarkovModel[Any]
_N_FOLDS = 2


def check_trees(kind: str, model: Model | None) -> None:
    """Raise ConfigError if trees of this kind cannot be fitted, before any long work."""
    for module in ("xgboost", "optuna"):
        require_extra(module, f"a detector of kind {kind!r}")
    if kind == "hybrid" and not isinstance(getattr(model, "encoder", Encoder()), Encoder):
        problem = "the model's encoder is trained and may have seen the labels of any row"
        raise ConfigError(f"{problem}. A hybrid needs an untrained `Encoder`")


def fit_trees(
    trees: BoostedTrees,
    parts: tuple[Features, Model, ChainFit],
    transactions: Transactions,
    split: Split,
    has_path: bool,
) -> Any:
    """A booster fitted on the fit and selection parts; the selection part chooses its settings."""
    rows = build_training_rows(parts, transactions, split, has_path)
    return trees.fit(rows, parts[1].random_state).booster


def build_training_rows(
    parts: tuple[Features, Model, ChainFit],
    transactions: Transactions,
    split: Split,
    has_path: bool,
) -> TrainingRows:
    """The fit and selection parts for trees; the selection part validates.

    `parts` are fitted features, a fitted model, and how it was fitted. Rows of unknown label are
    history only.
    """
    features, model, chain = parts
    rows = np.union1d(split.fit, split.selection)
    rows = rows[np.asarray(transactions.labels)[rows] >= 0]
    panel, places = build_split_panel(features, transactions, split, "selection", rows)
    is_selection, path = np.isin(rows, split.selection), None
    if has_path:
        path = filter_path_columns(model, panel)
        if chain.anchoring is not None or isinstance(model, NeuralVariationalHMM):
            fit_panel = build_fit_panel(features, transactions, split)
            selection = SelectionRows(panel, places[is_selection])
            for other, own in cross_fit_paths(model, chain, fit_panel, selection):
                if not chain.needs_selection:  # then no model has seen labels of these rows
                    own[selection.places] = False
                path[own] = other[own]
        path = path[places]
    columns = build_ranker_matrix(panel.continuous[places], panel.categorical[places], path)
    known = np.asarray(transactions.labels)[rows], transactions.customer_codes[rows]
    return TrainingRows(columns, *known, transactions.times[rows] / DAY, is_selection)


def cross_fit_paths(
    model: Model, chain: ChainFit, fit_panel: Panel, selection: SelectionRows
) -> Iterator[tuple[Array, Array]]:
    """Paths [N, P] by models fitted without some customers, and whose rows they are [N].

    Rows are those of the selection's panel. States are ordered as those of `model`.
    """
    n_states, beliefs, panel = model.n_states, model.filter(fit_panel).probs, selection.panel
    folds = _draw_folds(panel, model.random_state)
    for fold in range(_N_FOLDS):
        held_out = np.asarray(panel.customers)[folds == fold]
        part = fit_panel[~np.isin(np.asarray(fit_panel.customers), held_out)]
        other = chain.restart().fit(part, selection.drop_customers(held_out))
        states = align_states(beliefs, other.filter(fit_panel).probs)
        columns = [*states, *(n_states + states), 2 * n_states, 2 * n_states + 1]
        yield filter_path_columns(other, panel)[:, columns], np.repeat(folds == fold, panel.lengths)


def _draw_folds(panel: Panel, seed: int) -> Array:
    """A fold for each customer at random, those with and without fraud in equal numbers."""
    has_fraud = np.zeros(panel.n_sequences, bool)
    if panel.labels is not None:
        has_fraud = np.add.reduceat(panel.labels == 1, panel.offsets[:-1], dtype=np.int64) > 0
    order = np.random.default_rng(seed).permutation(panel.n_sequences)
    order = order[np.argsort(has_fraud[order], kind="stable")]
    folds = np.empty(panel.n_sequences, np.int64)
    folds[order] = np.arange(panel.n_sequences) % _N_FOLDS
    return folds
