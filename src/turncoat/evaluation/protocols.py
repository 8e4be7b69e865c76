"""How a study splits its data: as the paper, matched, or as the Fraud Detection Handbook."""

from __future__ import annotations

import math
from dataclasses import dataclass

from turncoat.data.splits import DAY, Split, split_by_customer, split_by_time, split_prequential
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError
from turncoat.evaluation.results import Published

PROTOCOLS = ("matched", "chronological", "paper", "handbook")

_BOOK = "Fraud Detection Handbook, published table (train 7 days, delay 7, test 7, known compromised cards removed)"
PUBLISHED = {
    "handbook": tuple(
        Published(
            name,
            _BOOK,
            {"auroc": auroc, "average_precision": precision, "card_precision_100": cards},
        )
        for name, auroc, precision, cards in (
            ("XGBoost", 0.869, 0.687, 0.303),
            ("random forest", 0.870, 0.678, 0.299),
            ("LSTM", 0.876, 0.665, 0.297),
            ("Isolation Forest", 0.808, 0.164, 0.190),
        )
    )
}
_NEARLY = 0.3  # of a day: one that lacks less counts as whole
_BOOK_MEMORY = 7 * DAY  # the book forgets cards that were compromised before its week of training


@dataclass(frozen=True)
class SplitProtocol:
    """StudySettings of the split."""

    name: str = "matched"
    seed: int = 42
    label_delay_days: float = 7.0
    train_days: float = 35.0  # handbook: of which selection and calibration have the last two weeks
    n_folds: int = 4  # handbook: weeks that are tested, the latest
    drop_compromised: bool = (
        True  # handbook: leave out cards whose fraud is known, as the book does
    )

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.name not in PROTOCOLS:
            raise ConfigError(
                f"the protocol is {self.name!r}; it must be one of {', '.join(PROTOCOLS)}"
            )
        if self.train_days <= 14:
            raise ConfigError(
                f"train_days is {self.train_days!r}; it must be above 14, of which selection and calibration take 7 each"
            )
        if isinstance(self.n_folds, bool) or not isinstance(self.n_folds, int) or self.n_folds < 1:
            raise ConfigError(
                f"n_folds is {self.n_folds!r}; it must be a whole number of at least 1"
            )

    def splits(self, transactions: Transactions) -> list[Split]:
        """One split, or one for each fold."""
        who = (transactions.customer_codes, transactions.times, transactions.labels)
        if self.name in ("matched", "paper"):
            return [split_by_customer(*who, seed=self.seed, require_fraud=True)]
        delay = self.label_delay_days * DAY
        if self.name == "chronological":
            return [split_by_time(*who, gap_s=delay, require_fraud=True)]
        end = (
            math.floor(float(transactions.times.max()) / DAY + _NEARLY) * DAY
        )  # midnight: metrics count whole days
        days = self.train_days + 7 * self.n_folds + self.label_delay_days
        first = end - days * DAY
        if first < float(transactions.times.min()) - DAY:
            raise DataError(
                f"{transactions.source}: {self.n_folds} test weeks after {self.train_days:g} days of training need {days:g} days of data, "
                f"and there are {(end - float(transactions.times.min())) / DAY:.0f}. Use fewer weeks (--folds), or more data"
            )
        return split_prequential(
            *who,
            train_s=self.train_days * DAY,
            gap_s=delay,
            start_s=first,
            drop_compromised=self.drop_compromised,
            memory_s=_BOOK_MEMORY,
            require_fraud=True,
        )[-self.n_folds :]

    @property
    def in_words(self) -> str:
        """How the parts were made."""
        if self.name in ("matched", "paper"):
            return f"customers at random (seed {self.seed}): each is in one part only"
        if self.name == "chronological":
            return f"by time: each part is later than the one before, {self.label_delay_days:g} days of labels apart"
        cards = "cards known to be compromised removed" if self.drop_compromised else "all cards"
        return (
            f"prequential: {self.n_folds} test weeks, each after {self.train_days:g} days of training (the last two weeks for selection "
            f"and calibration) and a delay of {self.label_delay_days:g} days; {cards}"
        )
