"""Where a ranker's score comes from: a column of the file, XGBoost on the panel's columns, or the head of the model's own encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError
from turncoat.features import Features
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.neural.folded import FoldedEncoder
from turncoat.panel import Panel

_FEW_ROWS = 1000  # which take longer to share out among threads than to do


class Ranker(Protocol):
    """Gives transactions scores that rank them; higher is riskier. The scale does not matter."""

    @property
    def given(self) -> Any:
        """What it was made of, as `as_ranker` takes it."""
        ...

    def of_transactions(
        self, transactions: Transactions, panel: Panel, places: Array | None = None
    ) -> Array:
        """Scores [N] of transactions, whose features are the panel's rows, or those of its rows at `places`."""
        ...

    def of_rows(
        self, given: Sequence[TransactionRow], continuous: Array, categorical: Array
    ) -> Array:
        """Scores [N] of live transactions, as they were given and as features [N, D] and [N, J]."""
        ...


@dataclass(frozen=True)
class ColumnRanker:
    """The user's own score, in a continuous column of the schema."""

    column: str
    place: int  # among the continuous columns

    @property
    def given(self) -> str:
        """The column."""
        return self.column

    def of_transactions(
        self, transactions: Transactions, panel: Panel, places: Array | None = None
    ) -> Array:
        """The column's values."""
        return transactions.column(self.column)

    def of_rows(
        self, given: Sequence[TransactionRow], continuous: Array, categorical: Array
    ) -> Array:
        """The rows' values."""
        return np.array([row.numbers[self.place] for row in given])


@dataclass(frozen=True, eq=False)
class XGBoostRanker:
    """A fitted booster on continuous columns, then codes (missing as NaN); its log odds are the score."""

    booster: Any

    @property
    def given(self) -> Any:
        """The booster."""
        return self.booster

    def of_transactions(
        self, transactions: Transactions, panel: Panel, places: Array | None = None
    ) -> Array:
        """Log odds of the panel's rows."""
        rows = slice(None) if places is None else places
        return self._margins(panel.continuous[rows], panel.categorical[rows])

    def of_rows(
        self, given: Sequence[TransactionRow], continuous: Array, categorical: Array
    ) -> Array:
        """Log odds of live rows."""
        return self._margins(continuous, categorical)

    def _margins(self, continuous: Array, categorical: Array) -> Array:
        from xgboost import DMatrix

        best = self.booster.attr("best_iteration")  # of a fit that was stopped early
        margins: Array = self.booster.predict(
            DMatrix(
                ranker_columns(continuous, categorical),
                nthread=1 if len(continuous) < _FEW_ROWS else None,
            ),
            output_margin=True,
            validate_features=False,  # names, if it was fitted on a frame
            iteration_range=(0, 0 if best is None else int(best) + 1),
        )
        return margins.astype(np.float64)


@dataclass(frozen=True, eq=False)
class HeadRanker:
    """The head that a neural model's encoder was trained with; its log odds are the score."""

    encoder: FoldedEncoder

    @property
    def given(self) -> FoldedEncoder:
        """The encoder."""
        return self.encoder

    def of_transactions(
        self, transactions: Transactions, panel: Panel, places: Array | None = None
    ) -> Array:
        """Log odds of the panel's rows."""
        rows = slice(None) if places is None else places
        return self.encoder.head_score(panel.continuous[rows], panel.categorical[rows])

    def of_rows(
        self, given: Sequence[TransactionRow], continuous: Array, categorical: Array
    ) -> Array:
        """Log odds of live rows."""
        return np.array(
            [
                float(self.encoder.head_of(self.encoder.encode_row(*row)))
                for row in zip(continuous, categorical, strict=True)
            ]
        )


def ranker_columns(continuous: Array, categorical: Array) -> Array:
    """The columns that an XGBoost ranker is to be fitted on [N, D + J]: cells, then codes as numbers; NaN is missing."""
    return np.hstack(
        [continuous, np.where(categorical < 0, np.nan, categorical).astype(np.float32)]
    )


def as_ranker(given: Any, features: Features, model: HiddenMarkovModel[Any]) -> Ranker:
    """A ranker of a column's name, an XGBoost classifier or a booster, or the encoder of the model itself."""
    plan = features.plan
    if isinstance(given, FoldedEncoder):
        own: object = getattr(model, "encoder_", None)
        if own is not given:
            raise ConfigError(
                "the ranker is an encoder, and not the one that the detector's model has. Give `detector.model_.encoder_`"
            )
        return HeadRanker(given)
    if isinstance(given, str):
        if given not in plan.schema.continuous:
            raise ConfigError(
                f"the ranker's column {given!r} is not among the schema's continuous columns. Add it there"
            )
        return ColumnRanker(given, plan.schema.continuous.index(given))
    booster = given.get_booster() if hasattr(given, "get_booster") else given
    if not (hasattr(booster, "save_raw") and hasattr(booster, "num_features")):
        raise ConfigError(
            f"a ranker is a column's name, a fitted XGBoost model or the model's own encoder; found {type(given).__name__}"
        )
    expected = len(plan.continuous) + len(plan.categorical)
    if booster.num_features() != expected:
        raise ConfigError(
            f"the ranker was fitted on {booster.num_features()} columns; the panel has {expected}. Fit it on `ranker_columns`"
        )
    return XGBoostRanker(booster)
