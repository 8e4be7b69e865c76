"""How numbers and names are shown: a metric's heading, digits worth reading, a dash for what does not exist."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from turncoat.evaluation.results import CandidateResult, Interval

DASH = "\N{EN DASH}"
_PERCENT = "\N{NO-BREAK SPACE}%"
_SMALLEST_P = 1e-4
_SMALLEST_DECIMAL = 1e-6


@dataclass(frozen=True)
class MetricText:
    """A metric as people read it."""

    label: str
    meaning: str
    decimals: int = 3
    better: str = "higher"
    is_calibration: bool = False  # means nothing for scores that are no probabilities


METRICS = {
    "average_precision": MetricText(
        "AP", "average precision, the area under the precision-recall curve (AUPRC)"
    ),
    "auroc": MetricText("AUROC", "chance that a fraud scores above a genuine transaction"),
    "ks": MetricText(
        "KS", "largest distance between the score distributions of fraud and of the rest"
    ),
    "ece_mass": MetricText(
        "ECE, equal mass",
        "mean gap between score and fraud share over bins with equally many rows",
        4,
        "lower",
        True,
    ),
    "ece_width": MetricText(
        "ECE, equal width",
        "the same over 15 bins of equal width, as in the paper",
        4,
        "lower",
        True,
    ),
    "brier": MetricText(
        "Brier", "mean squared error of the score as a probability", 4, "lower", True
    ),
    "log_loss": MetricText(
        "Log loss", "mean negative log likelihood of the labels, in nats", 4, "lower", True
    ),
    "card_precision_100": MetricText(
        "Card precision @100",
        "share of defrauded among the 100 customers with the highest scores of a day",
    ),
    "precision_100_daily": MetricText(
        "Precision @100",
        "share of fraud among the 100 transactions with the highest scores of a day",
    ),
    "recall_at_0.1%": MetricText(
        f"Recall at 0.1{_PERCENT}",
        "share of fraud found if one transaction in a thousand is looked at",
    ),
    "recall_at_0.5%": MetricText(
        f"Recall at 0.5{_PERCENT}",
        "share of fraud found if five transactions in a thousand are looked at",
    ),
    "recall_at_1%": MetricText(
        f"Recall at 1{_PERCENT}",
        "share of fraud found if one transaction in a hundred is looked at",
    ),
    "recall_at_5%": MetricText(
        f"Recall at 5{_PERCENT}",
        "share of fraud found if five transactions in a hundred are looked at",
    ),
}
MAIN = (
    "average_precision",
    "auroc",
    "ks",
    "ece_mass",
    "brier",
    "log_loss",
    "card_precision_100",
    "recall_at_1%",
)
FAMILIES = {
    "hmm": "Hidden Markov models",
    "hybrid": "Hybrids",
    "ranker": "Rankers inside the regimes",
    "calibrated": "Calibrated baselines",
    "baseline": "Baselines",
}
CRITERIA = {"bic": "BIC", "elbo": "ELBO", "held_out": "Held-out log density per row"}
TIERS = {"baum-welch": "Baum-Welch", "variational": "Variational"}


def metric_of(name: str) -> MetricText:
    """How a metric is shown; one that is not known here keeps its name."""
    return METRICS.get(name) or MetricText(plain(name), "")


def plain(name: str) -> str:
    """An identifier as words."""
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def tier_text(tier: str) -> str:
    """A tier's name."""
    return TIERS.get(tier, plain(tier))


def family_text(family: str) -> str:
    """A family's heading."""
    return FAMILIES.get(family, plain(family))


def criterion_text(name: str) -> str:
    """A criterion's heading."""
    return CRITERIA.get(name, plain(name))


def exists(value: float | None) -> bool:
    """Whether there is a number to show."""
    return value is not None and math.isfinite(value)


def number(value: float | None, decimals: int = 3) -> str:
    """With fixed decimals; two significant digits where those would be lost."""
    if value is None or not math.isfinite(value):
        return DASH
    small = value != 0 and abs(value) < 10.0 ** (1 - decimals)
    return _minus(_significant(value) if small else f"{value:,.{decimals}f}")


def signed(value: float | None, decimals: int = 4) -> str:
    """A difference."""
    text = number(value, decimals)
    return f"+{text}" if value is not None and value > 0 and text != DASH else text


def percent(value: float | None) -> str:
    """A share, with about three digits."""
    if value is None or not math.isfinite(value):
        return DASH
    hundredths = 100 * value
    decimals = 1 if abs(hundredths) >= 10 else 2
    small = hundredths != 0 and abs(hundredths) < 0.1
    return _minus(_significant(hundredths) if small else f"{hundredths:.{decimals}f}") + _PERCENT


def round_percent(value: float | None) -> str:
    """A share that is round, without zeros at its end."""
    return (
        DASH
        if value is None or not math.isfinite(value)
        else _minus(f"{100 * value:.6g}") + _PERCENT
    )


def tick(value: float) -> str:
    """A number on an axis."""
    return _minus(f"{value / 1e6:,.6g} M" if abs(value) >= 1e6 else f"{value:,.6g}")


def count(value: float | None) -> str:
    """A whole number."""
    return DASH if value is None or not math.isfinite(value) else _minus(f"{value:,.0f}")


def as_given(value: float | None) -> str:
    """With the digits that somebody else gave."""
    return DASH if value is None or not math.isfinite(value) else _minus(repr(value))


def p_value(value: float | None) -> str:
    """A p-value, as far as it is worth telling."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"< {_SMALLEST_P}" if value < _SMALLEST_P else f"{value:.2g}"


def interval(bounds: Interval | None, decimals: int = 3) -> str:
    """Both ends of an interval; nothing if there is none."""
    return (
        ""
        if bounds is None
        else f"{number(bounds[0], decimals)}{DASH}{number(bounds[1], decimals)}"
    )


def signed_interval(bounds: Interval, decimals: int = 4) -> str:
    """Both ends of a difference's interval."""
    return f"{signed(bounds[0], decimals)} to {signed(bounds[1], decimals)}"


def listed(words: Iterable[str]) -> str:
    """Words without repetition: "a, b and c"."""
    *some, last = dict.fromkeys(words) or [DASH]
    return f"{', '.join(some)} and {last}" if some else last


def inference_of(candidates: Iterable[CandidateResult]) -> str:
    """Which inference the scores of some candidates come from."""
    return "inference: " + listed(candidate.mode or "none (no HMM)" for candidate in candidates)


def _significant(value: float) -> str:
    """Two digits, as a decimal as long as that can be read."""
    if abs(value) < _SMALLEST_DECIMAL:
        return f"{value:.1e}"
    return f"{value:.{1 - math.floor(math.log10(abs(value)))}f}"


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")
