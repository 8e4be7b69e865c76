"""How numbers and names are shown: used as `show.percent(value)` and so on.

Numbers have sensible digits; a missing one is a dash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeGuard

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from turncoat.evaluation.metrics import METRICS
from turncoat.evaluation.summary import Interval

DASH = "\N{EN DASH}"
_PERCENT = "\N{NO-BREAK SPACE}%"
_MIN_P = 1e-4
_MIN_DECIMAL = 1e-6
_MIN_SHARE = 0.001  # per cent


class MetricText(NamedTuple):
    """A metric as people read it."""

    label: str
    meaning: str
    decimals: int = 3
    better: str = "higher"
    is_calibration: bool = False

    def mutes(self, is_probability: bool) -> bool:
        """Whether it means nothing for scores that are, or are not, probabilities."""
        return self.is_calibration and not is_probability


_GAP = "mean gap between score and fraud rate over bins with equally many rows"
_DAILY = "share of {} among the 100 {} with the highest scores of a day"
_FOUND = "share of fraud found if {} transactions are reviewed"
_HITS = "share of fraud among the alerts if {} transactions are reviewed"
_TEXTS = {
    "average_precision": ("AP", "average precision, the area under the precision-recall curve"),
    "auroc": ("AUROC", "chance that a fraud scores above a genuine transaction"),
    "ks": ("KS", "largest distance between the score distributions of fraud and of the rest"),
    "ece_mass": ("ECE, equal mass", _GAP),
    "ece_width": ("ECE, equal width", "the same over 15 bins of equal width, as in the paper"),
    "brier": ("Brier", "mean squared error of the score as a probability"),
    "log_loss": ("Log loss", "mean negative log likelihood of the labels, in nats"),
    "card_precision_100": ("Card precision @100", _DAILY.format("defrauded", "customers")),
    "precision_100_daily": ("Precision @100", _DAILY.format("fraud", "transactions")),
    "recall_at_0.1%": (f"Recall at 0.1{_PERCENT}", _FOUND.format("1 in 1,000")),
    "recall_at_0.5%": (f"Recall at 0.5{_PERCENT}", _FOUND.format("5 in 1,000")),
    "recall_at_1%": (f"Recall at 1{_PERCENT}", _FOUND.format("1 in 100")),
    "recall_at_5%": (f"Recall at 5{_PERCENT}", _FOUND.format("5 in 100")),
    "precision_at_0.1%": (f"Precision at 0.1{_PERCENT}", _HITS.format("1 in 1,000")),
    "precision_at_0.5%": (f"Precision at 0.5{_PERCENT}", _HITS.format("5 in 1,000")),
    "precision_at_1%": (f"Precision at 1{_PERCENT}", _HITS.format("1 in 100")),
    "precision_at_5%": (f"Precision at 5{_PERCENT}", _HITS.format("5 in 100")),
}
METRIC_TEXTS = {
    name: MetricText(
        *texts,
        decimals=4 if METRICS[name].needs_probability else 3,
        better="higher" if METRICS[name].higher_is_better else "lower",
        is_calibration=METRICS[name].needs_probability,
    )
    for name, texts in _TEXTS.items()
}
_FOLDED = (
    *("ece_width", "precision_100_daily", "recall_at_0.1%", "recall_at_0.5%", "recall_at_5%"),
    *("precision_at_0.1%", "precision_at_0.5%", "precision_at_1%", "precision_at_5%"),
)
MAIN_METRICS = tuple(name for name in _TEXTS if name not in _FOLDED)
FAMILIES = {
    "champion": "Champion",
    "hmm": "Hidden Markov models",
    "hybrid": "Hybrids",
    "ranker": "Rankers inside the regimes",
    "calibrated": "Calibrated baselines",
    "baseline": "Baselines",
}
_CRITERIA = {"bic": "BIC", "elbo": "ELBO", "held_out": "Held-out log density per row"}
_TITLES = {**FAMILIES, **_CRITERIA, "baum-welch": "Baum-Welch"}


def metric_text(name: str) -> MetricText:
    """How a metric is shown; an unknown one keeps its name."""
    return METRIC_TEXTS.get(name) or MetricText(capitalise(name), "")


def order_metrics(names: Iterable[str]) -> list[str]:
    """Metrics in the order of the page, each once; unknown ones last."""
    names = set(names)
    return [name for name in _TEXTS if name in names] + sorted(names - set(_TEXTS))


def capitalise(name: str) -> str:
    """An identifier as words."""
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def title_of(name: str) -> str:
    """The heading of a family, a tier or a criterion."""
    return _TITLES.get(name) or capitalise(name)


def exists(value: float | None) -> TypeGuard[float]:
    """Whether there is a number to show."""
    return value is not None and math.isfinite(value)


def text(value: str | None) -> str:
    """A text, or a dash."""
    return value or DASH


def number(value: float | None, decimals: int = 3) -> str:
    """A number with fixed decimals, or with two significant digits if it is smaller."""
    if not exists(value):
        return DASH
    small = value != 0 and abs(value) < 10.0 ** (1 - decimals)
    return _use_minus(_two_digits(value) if small else f"{value:,.{decimals}f}")


def signed(value: float | None, decimals: int = 4) -> str:
    """A difference."""
    return ("+" if exists(value) and value > 0 else "") + number(value, decimals)


def percent(value: float | None) -> str:
    """A share, with about three digits."""
    if not exists(value):
        return DASH
    hundredths = 100 * value
    decimals = 1 if abs(hundredths) >= 10 else 2
    small = hundredths != 0 and abs(hundredths) < 0.1
    shown = _two_digits(hundredths) if small else f"{hundredths:.{decimals}f}"
    return _use_minus(shown) + _PERCENT


def round_percent(value: float | None) -> str:
    """A round share, without trailing zeros."""
    return _use_minus(f"{100 * value:.6g}") + _PERCENT if exists(value) else DASH


def significant(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits."""
    if not exists(value):
        return DASH
    return _use_minus(f"{float(f'{value:.{digits}g}'):,.12g}")


two_digits = partial(significant, digits=2)


def share(value: float | None) -> str:
    """A share in whole per cent; with two digits below 10 %, and rounded down above 99 %."""
    if not exists(value):
        return DASH
    hundredths = 100 * value
    if 0 < abs(hundredths) < _MIN_SHARE:
        return f"< {_MIN_SHARE}{_PERCENT}"
    if 99 < hundredths < 100:
        shown = f"{math.floor(10 * hundredths) / 10:.3g}"
    else:
        shown = (
            f"{hundredths:.0f}" if abs(hundredths) >= 9.95 else f"{float(f'{hundredths:.2g}'):.12g}"
        )
    return _use_minus(shown) + _PERCENT


def tally(value: float | None) -> str:
    """An estimated count: with two digits below 100, and with three above."""
    return two_digits(value) if exists(value) and abs(value) < 99.5 else significant(value)


def money(value: float | None, currency: str) -> str:
    """An amount with three significant digits, after its currency."""
    return f"{currency}\N{NO-BREAK SPACE}{significant(value)}" if exists(value) else DASH


def show_range(interval: Interval | None, formatter: Callable[[float], str]) -> str:
    """Both ends of an interval in words; a dash if there is none."""
    return DASH if interval is None else " to ".join(map(formatter, interval))


def tick(value: float) -> str:
    """A number on an axis."""
    return _use_minus(f"{value / 1e6:,.6g} M" if abs(value) >= 1e6 else f"{value:,.6g}")


def _format(value: float | None, spec: str) -> str:
    return _use_minus(format(value, spec)) if exists(value) else DASH


ratio = partial(number, decimals=2)
count = partial(_format, spec=",.0f")  # a whole number
published = partial(_format, spec="")  # a number with the digits of its source


def p_value(value: float | None) -> str:
    """A p-value with two digits."""
    if not exists(value):
        return DASH
    return f"< {_MIN_P}" if value < _MIN_P else f"{value:.2g}"


def interval(interval: Interval | None, decimals: int = 3) -> str:
    """Both ends of an interval; empty if there is none."""
    return "" if interval is None else DASH.join(number(end, decimals) for end in interval)


def signed_interval(interval: Interval, decimals: int = 4) -> str:
    """Both ends of a difference's interval."""
    return " to ".join(signed(end, decimals) for end in interval)


def join_words(words: Iterable[str]) -> str:
    """Words without repetition: "a, b and c"."""
    *some, last = dict.fromkeys(words) or [DASH]
    return f"{', '.join(some)} and {last}" if some else last


def render(template: str, **values: Any) -> str:
    """A template of this package, filled in; only HTML is escaped."""
    loader, escape = PackageLoader("turncoat.reporting", "."), select_autoescape(["html.jinja"])
    pages = Environment(loader=loader, autoescape=escape, undefined=StrictUndefined)
    pages.trim_blocks = pages.lstrip_blocks = True
    pages.filters["fmt"] = format
    return pages.get_template(template).render(**values)


def _two_digits(value: float) -> str:
    if abs(value) < _MIN_DECIMAL:
        return f"{value:.1e}"
    return f"{value:.{1 - math.floor(math.log10(abs(value)))}f}"


def _use_minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")
