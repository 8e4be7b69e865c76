"""How a study splits its data: protocols, the folds they produce, and customer-disjoint samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.data.open_labels import find_labelled_until
from turncoat.data.schema import LABEL_DELAY_DAYS
from turncoat.data.splits import DAY, Split, split_by_customer, split_by_time, split_prequential
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError, check_count
from turncoat.features import Features
from turncoat.features.split_panels import build_split_panel
from turncoat.models.tuning import TrainingRows
from turncoat.panel import Panel
from turncoat.scoring.rankers import build_ranker_matrix

PROTOCOLS = ("matched", "chronological", "paper", "handbook")
TRAIN, CALIBRATION, TEST = "train", "calibration", "test"
_LAST_PART = {TRAIN: "selection", CALIBRATION: "calibration", TEST: "test"}
_DAY_TOLERANCE = 0.3  # a last day that lacks less than this share counts as whole
_HANDBOOK_MEMORY = 7 * DAY  # the Handbook forgets cards compromised before its training week


@dataclass(frozen=True)
class SplitProtocol:
    """Which split a study uses, and its settings."""

    name: str = "matched"
    seed: int = 42
    label_delay_days: float = LABEL_DELAY_DAYS
    train_days: float = 35.0  # handbook: the last two weeks are for selection and calibration
    n_folds: int = 4  # handbook: test weeks, the latest of the data
    drop_compromised: bool = True  # handbook: leave out cards with known fraud

    def __post_init__(self) -> None:
        if self.name not in PROTOCOLS:
            allowed = ", ".join(PROTOCOLS)
            raise ConfigError(f"the protocol is {self.name!r}; it must be one of {allowed}")
        if self.train_days <= 14:
            rule = "it must be above 14, because selection and calibration take 7 days each"
            raise ConfigError(f"train_days is {self.train_days!r}; {rule}")
        check_count("n_folds", self.n_folds, 1)

    def splits(self, transactions: Transactions) -> list[Split]:
        """One split, or one for each test week of the handbook protocol."""
        rows = (transactions.customer_codes, transactions.times, transactions.labels)
        if self.name in ("matched", "paper"):
            return [split_by_customer(*rows, seed=self.seed, require_fraud=True)]
        delay = self.label_delay_days * DAY
        if self.name == "chronological":
            return [split_by_time(*rows, gap_s=delay, require_fraud=True)]
        times, until = transactions.times, find_labelled_until(transactions.times, rows[2])
        begin, last = float(times.min()), float(times.max()) if until is None else until
        end = math.floor(last / DAY + _DAY_TOLERANCE) * DAY  # midnight: metrics count whole days
        n_days = self.train_days + 7 * self.n_folds + self.label_delay_days
        start = end - n_days * DAY
        if start < begin - DAY:
            weeks = f"{self.n_folds} test weeks after {self.train_days:g} days of training"
            found = f"need {n_days:g} days of data, and there are {(end - begin) / DAY:.0f}"
            n_most = math.floor((end - begin) / DAY + 1 - self.train_days - 7 * self.n_folds)
            shorter = f", a label delay of at most {n_most} days" if n_most >= 0 else ""
            remedy = f"Use fewer weeks (--folds){shorter}, or more data"
            raise DataError(f"{transactions.source}: {weeks} {found}. {remedy}")
        windows = {"train_s": self.train_days * DAY, "gap_s": delay, "start_s": start}
        options: dict[str, Any] = {**windows, "memory_s": _HANDBOOK_MEMORY, "require_fraud": True}
        folds = split_prequential(*rows, drop_compromised=self.drop_compromised, **options)
        return folds[-self.n_folds :]


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows and features of three parts; the train part holds the fit and selection rows."""

    transactions: Transactions
    split: Split
    features: Features  # fitted on the fit rows

    @classmethod
    def fit(cls, transactions: Transactions, split: Split, features: Features) -> Fold:
        """A fold whose features are fitted on the fit rows alone."""
        return cls(transactions, split, features.fit(transactions.take(split.fit)))

    def rows(self, part: str) -> Array:
        """Row numbers of a part among the transactions [n]."""
        if part == TRAIN:
            return np.union1d(self.split.fit, self.split.selection)
        return self.split.parts[part]

    def rows_without_test(self, label_delay_s: float) -> Array:
        """Row numbers of the parts before the test, and of excluded rows known when it began [n].

        A row is known `label_delay_s` after its time, with its label.
        """
        times, excluded = self.transactions.times, self.split.excluded
        begin = times[self.split.test].min()
        known = excluded[times[excluded] + label_delay_s < begin]
        return np.unique(np.concatenate([self.rows(TRAIN), self.rows(CALIBRATION), known]))

    def labels(self, part: str) -> Array:
        """Labels of a part's rows [n]: 0, 1, or -1 for unknown."""
        return np.asarray(self.transactions.labels)[self.rows(part)]

    def known(self, part: str) -> Array:
        """Which of a part's rows have a known label [n]; only these are learnt from and judged."""
        return self.labels(part) >= 0

    def customers(self, part: str) -> Array:
        """Customer codes of a part's rows [n]."""
        return self.transactions.customer_codes[self.rows(part)]

    def panel(self, part: str, features: Features) -> tuple[Panel, Array]:
        """A panel of the part's rows and their customers' earlier rows, and the part's places."""
        rows = self.rows(part)
        return build_split_panel(features, self.transactions, self.split, _LAST_PART[part], rows)

    @cached_property
    def columns(self) -> dict[str, Array]:
        """The baselines' columns by part [n, D]."""
        columns = {}
        for part in _LAST_PART:
            panel, places = self.panel(part, self.features)
            columns[part] = build_ranker_matrix(panel.continuous, panel.categorical)[places]
        return columns

    def training_rows(self, columns: Array) -> TrainingRows:
        """The labelled rows of the train part, given its columns [n, D].

        Its selection rows validate the settings of what is fitted.
        """
        rows = self.rows(TRAIN)
        own = columns, self.labels(TRAIN), self.customers(TRAIN)
        is_selection = np.isin(rows, self.split.selection)
        every = TrainingRows(*own, self.transactions.times[rows] / DAY, is_selection)
        return every.take(self.known(TRAIN))

    @cached_property
    def n_earlier(self) -> Array:
        """Number of earlier transactions of its customer for each test row [n]."""
        offsets, rows = self.transactions.offsets, self.rows(TEST)
        return np.asarray(rows - offsets[np.searchsorted(offsets, rows, side="right") - 1])
