"""Trees of a detector: fitted on its features and, for a hybrid, on the customer's path.

No booster is trained on beliefs of a model that has seen the label of that row. An unsupervised
model has seen none. Otherwise the rows that the model was fitted on get the beliefs of models
fitted without their customers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import clone

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
from turncoat.scoring.path import filter_path_columns
from turncoat.scoring.rankers import build_ranker_matrix
from turncoat.scoring.supervision import Anchoring

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
    parts: tuple[Features, Model, Anchoring | None],
    transactions: Transactions,
    split: Split,
    has_path: bool,
) -> Any:
    """A booster fitted on the fit and selection parts; the selection part chooses its settings.

    Rows of unknown label are history only.
    """
    features, model, anchoring = parts
    rows = np.union1d(split.fit, split.selection)
    rows = rows[np.asarray(transactions.labels)[rows] >= 0]
    panel, places = build_split_panel(features, transactions, split, "selection", rows)
    is_selection, path = np.isin(rows, split.selection), None
    if has_path:
        path = filter_path_columns(model, panel)
        if anchoring is not None or isinstance(model, NeuralVariationalHMM):
            fit_panel = build_fit_panel(features, transactions, split)
            for other, own in _cross_fit(model, anchoring, fit_panel, panel):
                own[places[is_selection]] = False
                path[own] = other[own]
        path = path[places]
    columns = build_ranker_matrix(panel.continuous[places], panel.categorical[places], path)
    known = np.asarray(transactions.labels)[rows], transactions.customer_codes[rows]
    training = TrainingRows(columns, *known, transactions.times[rows] / DAY, is_selection)
    return trees.fit(training, model.random_state).booster


def _cross_fit(
    model: Model, anchoring: Anchoring | None, fit_panel: Panel, panel: Panel
) -> Iterator[tuple[Array, Array]]:
    """Paths [N, P] by models fitted without some customers, and whose rows they are [N]."""
    n_states, beliefs = model.n_states, model.filter(fit_panel).probs
    rng = np.random.default_rng(model.random_state)
    folds = rng.permutation(panel.n_sequences) % _N_FOLDS
    for fold in range(_N_FOLDS):
        held_out = np.asarray(panel.customers)[folds == fold]
        part = fit_panel[~np.isin(np.asarray(fit_panel.customers), held_out)]
        other: Model = clone(model)
        other.fit(part, None if anchoring is None else anchoring.make_anchors(part, n_states))
        states = align_states(beliefs, other.filter(fit_panel).probs)
        columns = [*states, *(n_states + states), 2 * n_states, 2 * n_states + 1]
        yield filter_path_columns(other, panel)[:, columns], np.repeat(folds == fold, panel.lengths)
