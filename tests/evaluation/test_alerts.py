"""Alert budgets against sorting copies of rows by hand, and against money computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tests.evaluation.samples import make_scored
from turncoat import ConfigError
from turncoat.evaluation.alerts import (
    CaughtFrauds,
    HeldOutDays,
    LabelWeights,
    catch_frauds,
    measure_reliability,
)
from turncoat.evaluation.bootstrap import draw_customers
from turncoat.evaluation.metrics import ScoredLabels, measure
from turncoat.evaluation.summary import Costs

BUDGETS = (1.0, 2.5, 7.0, 30.0, 5000.0)
N_RESAMPLES = 40


def make_days(folds: list[ScoredLabels], scale: float = 1.0, seed: int = 9) -> HeldOutDays:
    rng = np.random.default_rng(seed)
    amounts = tuple(np.exp(rng.normal(3, 1, len(fold))) for fold in folds)
    return HeldOutDays(tuple(5 for _ in folds), scale, amounts)


def catch_by_hand(scored: ScoredLabels, paid: np.ndarray, n_alerts: float) -> tuple[float, float]:
    """Frauds and amounts among the highest scores; a group of equal ones is shared out."""
    left, caught, value = Fraction(n_alerts), 0.0, 0.0
    for score in sorted(set(scored.scores.tolist()), reverse=True):
        group = scored.scores == score
        share = float(min(Fraction(1), left / int(group.sum())))
        caught += share * scored.labels[group].sum()
        value += share * (paid * scored.labels)[group].sum()
        left -= min(left, Fraction(int(group.sum())))
    return caught, value


def draw(
    scored: ScoredLabels, paid: np.ndarray, customers: np.ndarray
) -> tuple[ScoredLabels, np.ndarray]:
    """The rows of drawn customers, copied as often as they were drawn."""
    rows = np.concatenate([np.flatnonzero(scored.customers == one) for one in customers])
    return scored.take(rows), paid[rows]


@pytest.mark.parametrize("n_levels", [None, 12])
def test_what_a_budget_catches_is_found_by_hand_in_every_resample(n_levels: int | None) -> None:
    folds = [make_scored(seed, 400, n_levels=n_levels, n_customers=15) for seed in (1, 2)]
    days = make_days(folds, scale=2.0)
    assert days.amounts is not None
    found = catch_frauds(folds, days, BUDGETS, n_resamples=6, seed=3)
    customers = np.unique(np.concatenate([fold.customers for fold in folds]))
    for r in range(7):
        drawn = customers
        if r:
            drawn = customers[draw_customers(3, r - 1, len(customers))]
        copies = [draw(fold, own, drawn) for fold, own in zip(folds, days.amounts, strict=True)]
        for b, alerts in enumerate(BUDGETS):
            by_fold = [catch_by_hand(*one, min(alerts * 5 / 2.0, len(one[0]))) for one in copies]
            np.testing.assert_allclose(found.caught[r, :, b], np.sum(by_fold, axis=0), rtol=1e-9)
        totals = [[one.labels.sum(), (paid * one.labels).sum()] for one, paid in copies]
        np.testing.assert_allclose(found.totals[r], np.sum(totals, axis=0), rtol=1e-9)


def test_figures_are_those_of_what_was_caught() -> None:
    fold = make_scored(4, 1500, n_customers=60)
    days = make_days([fold], scale=3.0)
    traffic = days.measure_traffic([fold])
    costs = Costs(per_review=2.0, recoverable_share=0.4, currency="GBP")
    found = catch_frauds([fold], days, BUDGETS[:4], n_resamples=N_RESAMPLES, seed=1)
    month = 3.0 * 30 / 5
    assert traffic.rows_per_day == pytest.approx(3.0 * 1500 / 5)
    assert traffic.frauds_per_month == pytest.approx(month * fold.n_frauds)
    for b, one in enumerate(found.list_budgets(traffic, costs)):
        caught, value = found.caught[0, :, b]
        n_alerts = BUDGETS[b] * 5 / 3.0
        assert (one.n_alerts, one.n_caught) == (pytest.approx(n_alerts), caught)
        assert one.frauds_per_month.value == pytest.approx(month * caught)
        assert one.recall.value == pytest.approx(caught / fold.n_frauds)
        assert one.precision.value == pytest.approx(caught / n_alerts)
        assert one.false_alerts.value == pytest.approx((n_alerts - caught) / caught)
        assert one.net_saving is not None
        assert one.value_share is not None
        assert one.value_share.value == pytest.approx(value / found.totals[0, 1])
        reviews = 30 * BUDGETS[b]
        assert one.net_saving.value == pytest.approx(0.4 * month * value - 2.0 * reviews)
        assert (one.loss_prevented or 0) - (one.review_cost or 0) == pytest.approx(
            one.net_saving.value
        )
        for figure in (one.recall, one.precision, one.value_share, one.net_saving):
            assert figure.interval is not None
            assert figure.value is not None
            assert figure.interval[0] <= figure.value <= figure.interval[1]
        savings = 0.4 * month * found.caught[1:, 1, b] - 2.0 * reviews
        assert one.net_saving.interval == pytest.approx(tuple(np.quantile(savings, [0.05, 0.95])))


def test_numbers_are_those_with_the_fraud_rate_of_all_days() -> None:
    """A test part with a third of the usual frauds gives what one with all of them would."""
    whole = make_scored(4, 3000, n_customers=100)
    paid = np.exp(np.random.default_rng(2).normal(3, 1, len(whole)))
    is_fraud = whole.labels == 1
    copies = np.where(is_fraud, 3, 1)
    rows = np.repeat(np.arange(len(whole)), copies)  # every fraud three times
    usual, usual_paid = whole.take(rows), paid[rows]
    rate = 3 * whole.n_frauds / len(rows)
    weights = LabelWeights.match(len(whole), whole.n_frauds, rate)
    assert weights.fraud * whole.n_frauds + weights.genuine * (~is_fraud).sum() == pytest.approx(
        len(whole)
    )
    assert LabelWeights.match(len(usual), usual.n_frauds, rate) == (1.0, 1.0)
    scale = len(rows) / len(whole)
    options = {"n_resamples": 3, "seed": 1}
    costs, budgets = Costs(), (4.0, 20.0, 90.0)
    found = {}
    for name, fold, days in (
        ("usual", usual, HeldOutDays((5,), 1.0, (usual_paid,), rate)),
        ("few", whole, HeldOutDays((5,), scale, (paid,), rate, weights)),
    ):
        traffic = days.measure_traffic([fold])
        caught = catch_frauds([fold], days, budgets, **options)
        found[name] = traffic, caught.list_budgets(traffic, costs)
    for figure in ("rows_per_day", "frauds_per_month", "fraud_value_per_month"):
        few, expected = (getattr(found[name][0], figure) for name in ("few", "usual"))
        assert few == pytest.approx(expected)
    month = found["few"][0].frauds_per_month
    for few, expected in zip(found["few"][1], found["usual"][1], strict=True):
        names = "frauds_per_month", "recall", "precision", "value_per_month", "value_share"
        for name in (*names, "net_saving", "false_alerts"):
            assert getattr(few, name).value == pytest.approx(getattr(expected, name).value), name
        assert few.frauds_per_month.value == pytest.approx(few.recall.value * month)
        assert few.precision.value == pytest.approx(
            few.frauds_per_month.value / few.reviews_per_month
        )
        assert few.n_caught == pytest.approx(few.recall.value * whole.n_frauds)
        genuine = expected.n_alerts - expected.n_caught  # not copied, so as many in both
        assert few.n_alerts - few.n_caught == pytest.approx(genuine)


def test_recall_is_the_recall_of_the_metrics() -> None:
    fold = make_scored(6, 2000, n_levels=30)
    days = make_days([fold])
    found = catch_frauds([fold], days, (0.01 * 2000 / 5,), n_resamples=1, seed=0)
    (one,) = found.list_budgets(days.measure_traffic([fold]), Costs())
    expected = measure(fold, ["recall_at_1%", "precision_at_1%"])
    assert one.recall.value == pytest.approx(expected["recall_at_1%"])
    assert one.precision.value == pytest.approx(expected["precision_at_1%"])


def test_differences_are_paired() -> None:
    fold = make_scored(8, 1200)
    days = make_days([fold])
    worse = replace(fold, scores=np.random.default_rng(1).random(len(fold)))
    options = {"n_resamples": N_RESAMPLES, "seed": 2}
    one, other = (catch_frauds([scored], days, BUDGETS, **options) for scored in (fold, worse))
    for gap in one.compare(one):
        assert (gap.value, gap.interval) == (0.0, (0.0, 0.0))
    gaps = one.compare(other)
    expected = 30 / 5 * (one.caught[0, 0] - other.caught[0, 0])
    assert [gap.value for gap in gaps] == pytest.approx(expected.tolist())
    assert gaps[2].interval is not None
    assert gaps[2].interval[0] > 0


def test_amounts_that_are_unknown_or_negative_are_worth_nothing() -> None:
    fold = make_scored(5, 600)
    frauds = np.flatnonzero(fold.labels == 1)
    paid = np.full(len(fold), 10.0)
    paid[frauds[:3]] = np.nan, np.nan, -50.0
    days = HeldOutDays((5,), 1.0, (paid,))
    traffic = days.measure_traffic([fold])
    assert traffic.n_frauds_without_amount == 2
    assert traffic.fraud_value_per_month == pytest.approx(6 * 10.0 * (len(frauds) - 3))
    plain = replace(days, amounts=None)
    found = catch_frauds([fold], plain, BUDGETS, n_resamples=2, seed=1)
    traffic = plain.measure_traffic([fold])
    assert traffic.fraud_value_per_month is None
    for one in found.list_budgets(traffic, Costs()):
        nothing = (one.value_per_month, one.value_share, one.net_saving, one.review_cost)
        assert nothing == (None, None, None, None)


def test_a_budget_that_catches_nothing_has_no_false_alerts_per_fraud() -> None:
    labels = np.array([0] * 50 + [1])
    fold = ScoredLabels(-np.arange(51.0), labels, np.arange(51), np.zeros(51, np.int64))
    days = HeldOutDays((1,), 1.0, None)
    found = catch_frauds([fold], days, (3.0, 51.0), n_resamples=9, seed=1)
    none, every = found.list_budgets(days.measure_traffic([fold]), Costs())
    assert (none.precision.value, none.false_alerts.value) == (0.0, None)
    assert none.false_alerts.interval is None
    assert every.false_alerts.value == pytest.approx(50)


@pytest.mark.parametrize("rows_per_day", [0.3, 7.0, 165.0, 30_000.0, 4e7])
def test_budgets_are_round_log_spaced_and_within_the_traffic(rows_per_day: float) -> None:
    fold = make_scored(1, 300)
    days = HeldOutDays((10,), 1.0, None)
    traffic = replace(days.measure_traffic([fold]), rows_per_day=rows_per_day)
    budgets = days.choose_budgets(traffic)
    assert 10 <= len(budgets) <= 41
    assert budgets[-1] <= 0.2 * rows_per_day < 1.3 * budgets[-1]
    steps = np.diff(np.log(budgets))
    assert steps.max() < math.log(1.35)
    assert all(float(f"{one:.2g}") == one for one in budgets)
    assert rows_per_day < 100 or budgets[0] >= 1


def test_resamples_depend_on_the_seed_alone() -> None:
    fold = make_scored(3, 500)
    days = make_days([fold])

    def catch(seed: int) -> CaughtFrauds:
        return catch_frauds([fold], days, BUDGETS, n_resamples=5, seed=seed)

    np.testing.assert_array_equal(catch(1).caught, catch(1).caught)
    assert (catch(1).caught[1:] != catch(2).caught[1:]).any()


def test_bins_of_reliability_have_equal_sums_of_scores() -> None:
    fold = make_scored(7, 5000)
    found = measure_reliability("x", fold, n_resamples=N_RESAMPLES, seed=1)
    assert len(found.bins) == 10
    sums = [one.mean_score * one.n_rows for one in found.bins]
    assert sum(sums) == pytest.approx(fold.scores.sum())
    assert np.ptp(sums) < 2.1
    means = [one.mean_score for one in found.bins]
    assert means == sorted(means, reverse=True)
    order, start = np.argsort(-fold.scores, kind="stable"), 0
    for one in found.bins:
        rows = order[start : start + one.n_rows]
        assert one.fraud_rate.value == pytest.approx(fold.labels[rows].mean())
        assert one.fraud_rate.interval is not None
        assert one.fraud_rate.interval[0] <= one.fraud_rate.value <= one.fraud_rate.interval[1]
        start += one.n_rows
    assert start == len(fold)


def test_equal_scores_share_a_bin() -> None:
    fold = make_scored(7, 800, n_levels=4)
    found = measure_reliability("x", fold, n_resamples=3, seed=1)
    assert sum(one.n_rows for one in found.bins) == 800
    assert len(found.bins) <= len(np.unique(fold.scores))
    same = replace(fold, scores=np.zeros(len(fold)))
    (one,) = measure_reliability("x", same, n_resamples=3, seed=1).bins
    assert (one.mean_score, one.n_rows) == (0.0, 800)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"per_review": -1}, r"here: costs: per_review is -1; it must be a number of at least 0"),
        ({"per_review": math.inf}, "per_review is inf"),
        ({"per_review": "5"}, "per_review is '5'"),
        ({"recoverable_share": 1.2}, "recoverable_share is 1.2; it must be a number from 0 to 1"),
        ({"recoverable_share": True}, "recoverable_share is True"),
        ({"currency": ""}, "currency is ''; it must be a text of 1 to 12 characters"),
        ({"currency": "a\nb"}, "currency is"),
        (
            {"review": 5},
            "here: unknown cost 'review'; choose per_review, recoverable_share, currency",
        ),
    ],
)
def test_bad_costs_are_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Costs.from_dict(table, "here")


def test_costs_have_defaults_and_are_numbers() -> None:
    assert Costs.from_dict({}, "here") == Costs(5.0, 0.7, "EUR")
    assert isinstance(Costs.from_dict({"per_review": 3}, "here").per_review, float)
