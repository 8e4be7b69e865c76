"""Detectors of the causes of fraud: live equals batch, reasons add up, no label leaks, storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from tests.features.sample_data import DAY, STEP
from tests.scoring.bundles import manifest_of, params_file, rewrite, rewrite_arrays
from tests.scoring.chains import (
    AMOUNT,
    TERMINAL,
    cause_score_of,
    chains_detector,
    combine,
    payments,
    replay_payments,
    with_labels,
)
from tests.scoring.detectors import TREES, data_of, model_of, time_split
from turncoat import BundleError, ConfigError, DataError, Detector, load
from turncoat.data.simulators.handbook import FraudProcess
from turncoat.data.splits import split_automatically
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.features.chains import COUNTERPARTY_OUTPUTS, INTRUDER, count_causes, find_compromises
from turncoat.features.split_panels import select_visible
from turncoat.numerics.intruder import OUTPUTS
from turncoat.panel import Panel
from turncoat.scoring.causes import CauseScore, HeldOutRows
from turncoat.scoring.chain_fitting import build_corrected_rows, fit_causes
from turncoat.scoring.formatting import format_amount, format_rounded, format_times
from turncoat.scoring.rankers import CausesRanker, CorrectedCausesRanker, RankerRows, make_ranker
from turncoat.scoring.scorecard import Scorecard

CAUSES = (*OUTPUTS, *COUNTERPARTY_OUTPUTS)
(COMPROMISE,) = find_compromises(1)
KINDS = ("chains", "chains+trees")
every_kind = pytest.mark.parametrize("kind", KINDS)


def rank(made: Detector, transactions: Transactions, panel: Panel) -> np.ndarray:
    """The ranker's log odds, before calibration."""
    ranker = made.calibration_.ranker
    assert ranker is not None
    cells = panel.continuous, panel.categorical
    return ranker.score(RankerRows(transactions, *cells, None, panel.causes))


def fit(
    transactions: Transactions, kind: str = "chains", features: Features | None = None
) -> Detector:
    features = features or Features(min_count=4)
    made = Detector(features, model_of("expected-log", 2), kind=kind, trees=TREES)
    return made.fit(transactions, time_split(transactions))


# ---- scores


@every_kind
def test_later_frauds_are_found(kind: str) -> None:
    transactions = payments().transactions
    test = time_split(transactions).test
    labels = np.asarray(transactions.labels)[test]
    scores = chains_detector(kind).score(transactions).probability[test]
    assert roc_auc_score(labels, scores) > 0.8
    assert scores.mean() == pytest.approx(labels.mean(), rel=0.5)


@pytest.mark.parametrize(("kind", "n_rows"), [("chains", 2500), ("chains+trees", 400)])
def test_live_scores_equal_those_of_a_file(kind: str, n_rows: int) -> None:
    """Frauds are reported at once, with what the customer's side explains."""
    made, data = chains_detector(kind), payments()
    scores, live = made.score(data.transactions), replay_payments(made, data, n_rows)
    places = np.array(list(live))
    found = np.array([score.probability for score in live.values()])
    np.testing.assert_allclose(found, scores.probability[places], atol=1e-6)
    intervals = np.array([score.interval for score in live.values()])
    np.testing.assert_allclose(intervals, np.transpose(scores.interval())[places], atol=1e-6)
    assert found.std() > 0.003


@every_kind
def test_live_reasons_are_those_of_a_file(kind: str) -> None:
    made, data = chains_detector(kind), payments()
    live = replay_payments(made, data, 150)
    reasons = made.score(data.transactions, reasons="all").reasons
    assert reasons is not None
    for place, score in live.items():
        found, expected = score.reasons, reasons[place]
        assert [one.text for one in found] == [one.text for one in expected]
        values = [one.log_odds for one in found]
        assert values == pytest.approx([one.log_odds for one in expected], abs=1e-4)


@every_kind
def test_a_batch_is_scored_as_one_row_at_a_time(kind: str) -> None:
    made, transactions = chains_detector(kind), payments().transactions
    panel = made.features_.transform(transactions)
    whole, ranker = rank(made, transactions, panel), made.calibration_.ranker
    assert ranker is not None
    assert panel.causes is not None
    for i in range(0, transactions.n_rows, 500):
        own = slice(i, i + 1)
        cells = panel.continuous[own], panel.categorical[own]
        alone = ranker.score(RankerRows([], *cells, None, panel.causes[own]))
        np.testing.assert_allclose(alone, whole[own], atol=1e-6)


def test_kinds_have_their_rankers() -> None:
    assert type(chains_detector("chains").calibration_.ranker) is CausesRanker
    assert type(chains_detector("chains+trees").calibration_.ranker) is CorrectedCausesRanker


def test_a_panel_without_causes_is_refused() -> None:
    made, transactions = chains_detector(), payments().transactions
    panel = made.features_.add_chains(None).transform(transactions)
    assert panel.causes is None
    with pytest.raises(DataError, match="Make it with the detector's own `features_`"):
        rank(made, transactions, panel)


def test_chains_need_features_with_a_history() -> None:
    with pytest.raises(ConfigError, match="chains need the features `engineered`"):
        fit(payments().transactions, features=Features("processed"))


def test_causes_need_features_with_chains() -> None:
    made, plain = chains_detector(), Features(min_count=4).fit(payments().transactions)
    with pytest.raises(ConfigError, match="the features have no chains"):
        make_ranker(cause_score_of(made), plain, made.model_)


@every_kind
def test_data_of_any_schema_are_scored(kind: str) -> None:
    """Missing amounts and counterparties, ties, late rows, random labels."""
    data = data_of("shop")
    made = fit(data.transactions, kind)
    scores = made.score(data.transactions, reasons="all")
    assert np.isfinite(scores.probability).all()
    assert scores.reasons is not None
    assert all(scores.reasons)


# ---- no look-ahead


@every_kind
def test_no_score_depends_on_later_transactions(kind: str) -> None:
    made, transactions = chains_detector(kind), payments().transactions
    whole = made.score(transactions).probability
    early = np.flatnonzero(transactions.times <= np.quantile(transactions.times, 0.6))
    found = made.score(transactions.take(early)).probability
    np.testing.assert_allclose(found, whole[early], atol=1e-9)


@every_kind
def test_no_score_depends_on_labels_that_are_not_known_yet(kind: str) -> None:
    """A label is known once its day ended `label_delay_days` ago."""
    made, transactions = chains_detector(kind), payments().transactions
    delay = made.features_.plan.label_delay_s
    assert delay >= DAY
    now = DAY * np.floor(np.quantile(transactions.times, 0.6) / DAY)
    labels = np.asarray(transactions.labels)
    is_unknown = transactions.times >= now - delay
    flipped = with_labels(transactions, np.where(is_unknown, 1 - labels, labels))
    expected, found = made.score(transactions).probability, made.score(flipped).probability
    is_early = transactions.times < now
    assert (is_early & is_unknown).sum() > 100
    np.testing.assert_array_equal(found[is_early], expected[is_early])
    assert np.abs(found - expected)[~is_early].max() > 0.1  # once known, they do matter


def test_labels_of_the_test_part_do_not_reach_the_fit() -> None:
    transactions = payments(5000).transactions
    split, labels = time_split(transactions), np.asarray(transactions.labels).copy()
    labels[split.test] = 1 - labels[split.test]
    assert fit(transactions).digest_ == fit(with_labels(transactions, labels)).digest_


def test_shuffled_labels_find_nothing() -> None:
    transactions, found = payments(5000).transactions, []
    for seed in range(2):
        labels = np.random.default_rng(seed).permutation(np.asarray(transactions.labels))
        shuffled = with_labels(transactions, labels)
        test = time_split(shuffled).test
        scores = fit(shuffled).score(shuffled).probability[test]
        found.append(roc_auc_score(labels[test], scores))
    assert np.mean(found) == pytest.approx(0.5, abs=0.1)


def test_margins_that_trees_start_from_know_nothing_of_planted_labels() -> None:
    """Every row has a label at random, and causes that were learnt from it know it."""
    transactions, leaked, honest = payments(5000).transactions, [], []
    split = time_split(transactions)
    features = Features(min_count=4).fit(transactions.take(split.fit))
    for seed in range(3):
        labels = np.random.default_rng(seed).random(transactions.n_rows) < 0.1
        planted = with_labels(transactions, labels)
        chains, card = fit_causes(features, select_visible(planted, split, "fit")[0], seed)
        made, score = features.add_chains(chains), CauseScore(card)
        rows, panel = (
            build_corrected_rows(made, score, planted, split, seed),
            made.transform(planted),
        )
        is_fit, known = ~rows.is_validation, np.union1d(split.fit, split.selection)
        np.testing.assert_array_equal(rows.labels, labels[known])
        assert rows.margins is not None
        assert panel.causes is not None
        whole = score.score(panel.continuous, panel.categorical, panel.causes)[known]
        honest.append(roc_auc_score(rows.labels[is_fit], rows.margins[is_fit]))
        leaked.append(roc_auc_score(rows.labels[is_fit], whole[is_fit]))
    assert np.mean(honest) == pytest.approx(0.5, abs=0.05)
    assert np.mean(leaked) > 0.6  # so there was something to keep out


def test_margins_of_the_selection_part_are_those_of_the_detector() -> None:
    made, transactions = chains_detector(), payments().transactions
    split = time_split(transactions)
    rows = build_corrected_rows(made.features_, cause_score_of(made), transactions, split, 0)
    panel = made.features_.transform(transactions)
    whole = rank(made, transactions, panel)
    assert rows.margins is not None
    held_out = rows.margins[rows.is_validation]
    np.testing.assert_allclose(held_out, whole[np.sort(split.selection)], atol=1e-9)
    in_fit = rows.margins[~rows.is_validation]
    assert np.abs(in_fit - whole[np.sort(split.fit)]).max() > 1e-3  # learnt without the customer
    assert roc_auc_score(rows.labels[~rows.is_validation], in_fit) > 0.8


# ---- reasons


def explain_some(kind: str, **options: Any) -> tuple[list[Any], np.ndarray]:
    """Scores of a customer with fraud and the ranker's log odds."""
    made, transactions = chains_detector(kind), payments().transactions
    labels = np.asarray(transactions.labels)
    n_frauds = np.bincount(transactions.customer_codes, labels, len(transactions.customers))
    code = int(n_frauds.argmax())
    own = np.flatnonzero(transactions.customer_codes == code)
    customer = str(transactions.customers[code])
    panel = made.features_.transform(transactions, rows=own)
    scores = [score for _, score in made.explain(transactions, customer, **options)]
    return scores, rank(made, transactions.take(own), panel)


def test_shares_add_up_on_the_scale_where_causes_combine() -> None:
    scores, log_odds = explain_some("chains")
    for score, whole in zip(scores, log_odds, strict=True):
        assert {one.source for one in score.reasons} == {"customer", TERMINAL, "transaction"}
        shares = [one.share for one in score.reasons]
        assert sum(shares) == pytest.approx(1.0)
        hazards = [-np.log1p(-expit(one.log_odds)) for one in score.reasons]
        assert sum(hazards) == pytest.approx(-np.log1p(-expit(whole)), rel=1e-6)
        assert shares == pytest.approx([one / sum(hazards) for one in hazards], abs=1e-6)
        assert shares == sorted(shares, reverse=True)


def test_reasons_say_what_happened() -> None:
    made, transactions = chains_detector(), payments().transactions
    panel = made.features_.transform(transactions)
    assert panel.causes is not None
    reasons = made.score(transactions, reasons="all").reasons
    assert reasons is not None
    fact = dict(zip(CAUSES, panel.causes.T, strict=True))
    stolen, bad = int(fact["intruder"].argmax()), int(fact["run_frauds"].argmax())
    first = reasons[stolen][0]
    assert first.source == "customer"
    amount, times = transactions.column(AMOUNT)[stolen], fact["times_usual"][stolen]
    assert first.text.startswith(
        f"amount {format_amount(amount)}, {format_times(times)} this customer's own usual "
        f"(about {format_rounded(amount / times)})"
    )
    assert fact["times_usual"][stolen] > 2
    known = int(fact["known_frauds"].argmax())
    (customer,) = [one for one in reasons[known] if one.source == "customer"]
    assert fact["known_frauds"][known] > 1
    frauds = f"{fact['known_frauds'][known]:.0f} known frauds"
    assert f"{frauds}, the first {fact['known_days'][known]:.0f} days ago" in customer.text
    (terminal,) = [one for one in reasons[bad] if one.source == TERMINAL]
    name = transactions.categories[TERMINAL].values[find_terminals(transactions)[bad]]
    assert terminal.text.startswith(f"{TERMINAL} {name} ")
    assert f"{fact['run_frauds'][bad]:.0f} known frauds there since " in terminal.text
    assert str(terminal) == f"{terminal.text} ({terminal.share:.0%})"


def find_terminals(transactions: Transactions) -> np.ndarray:
    """The code of each transaction's terminal [N]."""
    return transactions.categories[TERMINAL].codes[transactions.file_rows]


def test_known_frauds_and_their_date_are_those_of_the_file() -> None:
    """Labels count a week after their step; a genuine payment in an earlier step ends a run."""
    made, transactions = chains_detector(), payments().transactions
    reasons = made.score(transactions, reasons="all").reasons
    assert reasons is not None
    steps, who = np.floor(transactions.times / STEP), find_terminals(transactions)
    labels, n_checked = np.asarray(transactions.labels), 0
    delay = made.features_.plan.label_delay_s
    for place in range(0, transactions.n_rows, 5):
        (terminal,) = [one for one in reasons[place] if one.source == TERMINAL]
        if " known fraud" not in terminal.text:
            continue
        # A step's labels are known once it ended `delay` ago.
        is_known = (who == who[place]) & ((steps + 1) * STEP + delay <= transactions.times[place])
        genuine = steps[is_known & (labels == 0)]
        run = steps[is_known & (labels == 1) & (steps >= genuine.max(initial=-np.inf))]
        first = datetime.fromtimestamp(run.min() * STEP, UTC)
        count = "1 known fraud" if len(run) == 1 else f"{len(run)} known frauds"
        when = "on" if len(run) == 1 else "since"
        date = f"{first.day} {first:%B}"
        assert terminal.text.endswith(f": {count} there {when} {date}")
        if "probably compromised for" in terminal.text:
            n_days = round((steps[place] - run.min()) / 4)
            assert f"compromised for {n_days} days:" in terminal.text
        n_checked += 1
    assert n_checked > 20


def test_the_transaction_s_reason_names_its_strongest_facts() -> None:
    """Points of the scorecard and its intercept add up to the reason's log odds."""
    process = FraudProcess(customer_hazard_per_day=0, large_amount=150)
    transactions = payments(8000, 1, 90, process).transactions
    made, large = fit(transactions), np.flatnonzero(transactions.column(AMOUNT) > 155)
    reasons, card = made.score(transactions, reasons="all").reasons, cause_score_of(made).scorecard
    assert reasons is not None
    panel = made.features_.transform(transactions)
    weights = cause_score_of(made).weights  # of a regression of the causes, if there is one
    weight = 1.0 if weights is None else weights[-1]
    assert len(large) > 3
    for place in large.tolist():
        (own,) = [one for one in reasons[place] if one.source == "transaction"]
        fact, _, points = own.text.split(", ")[0].rpartition(": ")
        amount = format_amount(transactions.column(AMOUNT)[place])
        assert fact.startswith(f"amount {amount} (above ")
        assert 145 < float(fact.partition("(above ")[2].removesuffix(")")) < 155
        assert float(points) > 1
        bins = card.find_bins(panel.continuous[[place]], panel.categorical[[place]])
        total = card.intercept + card.points[bins].sum()
        assert own.log_odds == pytest.approx(total * weight)


def test_reasons_of_corrected_causes_add_up_to_the_margin() -> None:
    scores, margins = explain_some("chains+trees")
    totals = [sum(one.log_odds for one in score.reasons) for score in scores]
    np.testing.assert_allclose(totals, margins, atol=1e-4)
    assert all(one.share is None for score in scores for one in score.reasons)
    assert all(score.path_reasons == () for score in scores)


def test_opening_the_history_gives_the_causes() -> None:
    scores, _ = explain_some("chains+trees", opens_path=True)
    causes = np.array([[one.log_odds for one in score.path_reasons] for score in scores])
    (history,) = np.transpose(
        [[one.log_odds for one in score.reasons if one.source == "history"] for score in scores]
    )
    together = 1 - np.prod(1 - expit(causes), axis=1)
    np.testing.assert_allclose(expit(history), together, atol=1e-6)
    names = {one.source for score in scores for one in score.path_reasons}
    assert names == {"customer", TERMINAL, "transaction"}


def test_with_a_regression_the_log_odds_add_up() -> None:
    made = combine(chains_detector(), [0.7, 1.2, 0.4], -0.3)
    transactions = payments().transactions
    own = np.flatnonzero(transactions.customer_codes == 3)
    panel = made.features_.transform(transactions, rows=own)
    margins = rank(made, transactions.take(own), panel)
    explained = made.explain(transactions, str(transactions.customers[3]))
    for (_, score), margin in zip(explained, margins, strict=True):
        total = sum(one.log_odds for one in score.reasons)
        assert total - 0.3 == pytest.approx(margin, abs=1e-9)
        assert all(one.share is None for one in score.reasons)


def test_without_a_counterparty_its_cause_is_left_out() -> None:
    score, cells = CauseScore(EMPTY_CARD), make_cells(5, n_counterparties=0)
    (reasons,) = {len(one) for one in score.explain((), *cells, [("a", "c")] * 5)}
    assert reasons == 2


def test_every_counterparty_is_a_cause_of_its_own() -> None:
    score, cells = CauseScore(EMPTY_CARD), make_cells(200, n_counterparties=3)
    columns = [INTRUDER, *find_compromises(3)]
    row = expit(EMPTY_CARD.score(*cells[:2]))
    risks = np.column_stack([cells[2][:, columns], row])
    np.testing.assert_allclose(expit(score.score(*cells)), 1 - np.prod(1 - risks, axis=1))
    names = ("customer", "a", "b", "c", "transaction")
    texts = [tuple("abcde")] * len(risks)
    for own, reasons in zip(risks, score.explain(names[1:-1], *cells, texts), strict=True):
        assert sorted(one.source for one in reasons) == sorted(names)
        found = {one.source: expit(one.log_odds) for one in reasons}
        np.testing.assert_allclose([found[name] for name in names], own)
        assert sum(one.share or 0.0 for one in reasons) == pytest.approx(1.0)
    weighed = CauseScore(EMPTY_CARD, np.array([0.1, 0.2, 0.3, 0.4, 0.5]), -0.6)
    expected = np.log(risks / (1 - risks)) @ [0.1, 0.2, 0.3, 0.4, 0.5] - 0.6
    np.testing.assert_allclose(weighed.score(*cells), expected)


def test_reasons_are_about_their_own_counterparty() -> None:
    cells, texts = make_cells(1, n_counterparties=2), [("own", "of a", "of b", "row")]
    (reasons,) = CauseScore(EMPTY_CARD).explain(("a", "b"), *cells, texts)
    found = {one.source: one.text for one in reasons}
    assert found == {"customer": "own", "a": "of a", "b": "of b", "transaction": "row"}


def test_weights_are_one_for_each_cause() -> None:
    for n_counterparties in (0, 1, 3):
        for n_weights in range(1, 7):
            score = CauseScore(EMPTY_CARD, np.ones(n_weights), 0.0)
            if n_weights == 2 + n_counterparties:
                score.check(1, (), n_counterparties)
                continue
            with pytest.raises(ValueError, match=f"not {2 + n_counterparties} numbers"):
                score.check(1, (), n_counterparties)


# ---- combination

EMPTY_CARD = Scorecard(
    np.empty(0, np.int64),
    np.empty(0),
    np.zeros(1, np.int64),
    np.zeros(1, np.int64),
    np.empty(0),
    -5.0,
)


def make_cells(
    n: int, seed: int = 0, n_counterparties: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows whose only news are their causes: mostly small risks, a few large ones."""
    rng = np.random.default_rng(seed)
    causes = np.zeros((n, count_causes(n_counterparties)))
    for column in (INTRUDER, *find_compromises(n_counterparties)):
        causes[:, column] = np.where(rng.random(n) < 0.1, rng.beta(1, 1, n), rng.beta(0.5, 200, n))
    return np.zeros((n, 1), np.float32), np.zeros((n, 0), np.int16), causes


def draw_held_out(chances: Callable[[np.ndarray], np.ndarray], n: int = 8000) -> HeldOutRows:
    """Labels drawn with these probabilities of the causes; customers have 20 rows each."""
    cells = make_cells(n)
    risks = CauseScore(EMPTY_CARD).compute_risks(*cells)
    labels = np.random.default_rng(9).random(n) < chances(risks)
    return HeldOutRows(*cells, labels.astype(np.int8), np.arange(n) // 20)


def test_independent_causes_stay_independent() -> None:
    score = CauseScore(EMPTY_CARD)
    rows = draw_held_out(lambda risks: 1 - np.prod(1 - risks, axis=1))
    assert score.choose_combination(rows) is score


def test_a_regression_that_predicts_clearly_better_is_used() -> None:
    """The intruder's risk is worthless here, and the compromise's too high."""
    score = CauseScore(EMPTY_CARD)
    rows = draw_held_out(lambda risks: expit(-3.0 + 0.5 * np.log(risks[:, 1] / (1 - risks[:, 1]))))
    found = score.choose_combination(rows)
    assert found.weights is not None
    assert abs(found.weights[0]) < 0.15
    assert found.weights[1] == pytest.approx(0.5, abs=0.15)
    cells = rows.continuous, rows.categorical, rows.causes

    def lose(one: CauseScore) -> float:
        chances = np.clip(expit(one.score(*cells)), 1e-12, 1 - 1e-12)
        return -np.log(np.where(rows.labels == 1, chances, 1 - chances)).mean()

    assert lose(found) < lose(score)


def test_a_regression_that_is_better_for_one_customer_only_is_not_used() -> None:
    """The gain is large, but within its standard error by customer."""
    score = CauseScore(EMPTY_CARD)
    rows = draw_held_out(lambda risks: 1 - np.prod(1 - risks, axis=1))
    cells = rows.continuous, rows.categorical, rows.causes
    labels, customers = rows.labels.copy(), np.full(len(rows.labels), 2)
    customers[:1000] = np.arange(1000) % 2
    labels[2000:] = 0
    one_customer = rows._replace(labels=labels, customers=customers)
    assert score.choose_combination(one_customer) is score
    assert np.isfinite(score.score(*cells)).all()


@pytest.mark.parametrize("label", [0, 1])
def test_labels_of_one_kind_choose_nothing(label: int) -> None:
    rows = draw_held_out(lambda risks: risks[:, 0])
    score = CauseScore(EMPTY_CARD)
    alike = rows._replace(labels=np.full(len(rows.labels), label, np.int8))
    assert score.choose_combination(alike) is score
    lonely = rows._replace(labels=(np.arange(len(rows.labels)) == 7).astype(np.int8))
    assert score.choose_combination(lonely) is score


def test_certain_causes_have_finite_log_odds() -> None:
    continuous, categorical, causes = make_cells(3)
    causes[0, INTRUDER], causes[1, COMPROMISE] = 1.0, 1.0
    causes[2, [INTRUDER, COMPROMISE]] = 0.0
    score = CauseScore(EMPTY_CARD)
    assert np.isfinite(score.score(continuous, categorical, causes)).all()
    texts = [("a", "b", "c")] * 3
    for reasons in score.explain((TERMINAL,), continuous, categorical, causes, texts):
        assert sum(one.share or 0.0 for one in reasons) == pytest.approx(1.0)
        assert all(np.isfinite(one.log_odds) for one in reasons)


# ---- storage


@every_kind
def test_a_saved_detector_scores_the_same(kind: str, tmp_path: Path) -> None:
    made, transactions = chains_detector(kind), payments().transactions
    made.save(tmp_path / "made")
    again = load(tmp_path / "made")
    assert (again.kind, again.digest_) == (kind, made.digest_)
    assert type(again.calibration_.ranker) is type(made.calibration_.ranker)
    expected, found = made.score(transactions), again.score(transactions)
    np.testing.assert_array_equal(found.probability, expected.probability)
    np.testing.assert_array_equal(found.variance, expected.variance)
    customer = str(transactions.keys[0])
    first, second = (one.explain(transactions, customer, last=3) for one in (made, again))
    assert [score.reasons for _, score in first] == [score.reasons for _, score in second]


@every_kind
def test_a_saved_regression_of_the_causes_scores_the_same(kind: str, tmp_path: Path) -> None:
    made = combine(chains_detector(kind), [0.7, 1.2, 0.4], -0.3)
    transactions = payments().transactions
    made.save(tmp_path / "made")
    again = load(tmp_path / "made")
    np.testing.assert_array_equal(cause_score_of(again).weights, [0.7, 1.2, 0.4])
    assert cause_score_of(again).intercept == -0.3
    expected, found = made.score(transactions), again.score(transactions)
    np.testing.assert_array_equal(found.probability, expected.probability)
    again.save(tmp_path / "again")
    assert manifest_of(tmp_path / "again")["ranker"] == manifest_of(tmp_path / "made")["ranker"]


def test_the_digest_knows_the_chains_and_not_how_causes_combine() -> None:
    made = chains_detector()
    assert combine(made, [0.7, 1.2, 0.4], 0.0).digest_ == made.digest_
    chains = made.features_.plan.chains
    assert chains is not None
    (compromise,) = chains.compromise
    assert compromise is not None
    assert chains.intruder is not None
    for change in (
        {"compromise": (replace(compromise, mean_days=5.0),)},
        {"compromise": ()},
        {"intruder": replace(chains.intruder, share=0.5)},
        {"intruder": None},
    ):
        other = made._replace_calibration(made.calibration_)
        other.features_ = made.features_.add_chains(replace(chains, **change))
        assert other.digest_ != made.digest_


ARRAYS: dict[str, Any] = {
    "ranker.causes.scorecard.points": lambda array: array[:-1],
    "ranker.causes.scorecard.columns": lambda array: array + 1000,
    "ranker.causes.scorecard.edges": lambda array: np.nan * array,
    "ranker.causes.scorecard.starts": lambda array: array[::-1].copy(),
    "features.intruder.priors": lambda array: -array,
    "features.intruder.scales": lambda array: array + 7,
    "features.intruder.log_ratios": lambda array: array[:, :-1].copy(),
}


@every_kind
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", list(ARRAYS))
def test_damaged_arrays_are_refused(kind: str, name: str, missing: bool, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    chains_detector(kind).save(folder)
    array = load_file(params_file(folder))[name]
    rewrite_arrays(folder, {name: None if missing else ARRAYS[name](array)})
    with pytest.raises(BundleError):
        load(folder)


@every_kind
@pytest.mark.parametrize("weights", [np.ones(2), np.full(3, np.nan), np.ones((3, 1))])
def test_weights_that_are_not_three_numbers_are_refused(
    kind: str, weights: np.ndarray, tmp_path: Path
) -> None:
    folder = tmp_path / "made"
    chains_detector(kind).save(folder)
    rewrite_arrays(folder, {"ranker.causes.weights": weights})
    with pytest.raises(BundleError):
        load(folder)


CHAINS = {
    "no chains": None,
    "a share above 1": {"compromise": {"share": 1.5}},
    "no phases": {"compromise": {"n_phases": 0}},
    "a negative length": {"compromise": {"mean_days": -1.0}},
    "no onsets": {"intruder": {"onsets_per_day": 0.0}},
    "another column": {"intruder": {"columns": ["TX_FRAUD"]}},
    "a field too many": {"intruder": {"speed": 1.0}},
}


@pytest.mark.parametrize("name", list(CHAINS))
def test_damaged_chains_are_refused(name: str, tmp_path: Path) -> None:
    folder, changes = tmp_path / "made", CHAINS[name]
    chains_detector().save(folder)
    features = manifest_of(folder)["features"]
    if changes is None:
        features["chains"] = None
    else:
        for side, fields in changes.items():
            chain = features["chains"][side]
            (chain[0] if side == "compromise" else chain).update(fields)
    rewrite(folder, features=features)
    with pytest.raises(BundleError):
        load(folder)


RANKERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another kind": lambda ranker: {**ranker, "kind": "guess"},
    "no scorecard": lambda ranker: {**ranker, "scorecard": None},
    "no intercept": lambda ranker: {k: v for k, v in ranker.items() if k != "intercept"},
    "an intercept that is no number": lambda ranker: {**ranker, "intercept": "low"},
    "none": lambda ranker: None,
}


@pytest.mark.parametrize("name", list(RANKERS))
def test_damaged_rankers_are_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    chains_detector().save(folder)
    rewrite(folder, ranker=RANKERS[name](manifest_of(folder)["ranker"]))
    with pytest.raises(BundleError):
        load(folder)


# ---- after the fit


@every_kind
def test_a_loaded_detector_is_fitted_to_other_rows(kind: str, tmp_path: Path) -> None:
    chains_detector(kind).save(tmp_path / "made")
    old, other = load(tmp_path / "made"), payments(6000, seed=5).transactions
    rows = other.customer_codes, other.times, other.labels
    again = old.refit(other, split_automatically(*rows, test=0.0))
    assert (again.kind, type(again.calibration_.ranker)) == (kind, type(old.calibration_.ranker))
    assert again.features_.plan.chains is not None
    assert again.digest_ != old.digest_
    scores = again.score(other).probability
    assert roc_auc_score(np.asarray(other.labels), scores) > 0.8
    assert scores.mean() == pytest.approx(np.mean(other.labels), rel=0.3)


@every_kind
def test_later_labels_recalibrate_it(kind: str) -> None:
    made, transactions = chains_detector(kind), payments().transactions
    panel = made.features_.transform(transactions)
    external, beliefs = rank(made, transactions, panel), made.score(transactions).belief
    given = beliefs, np.asarray(transactions.labels), transactions.offsets
    with pytest.raises(DataError, match="or pass `ranker_scores`"):
        made.recalibrate(*given)
    everything = np.ones(transactions.n_rows, np.int8)
    other = made.recalibrate(beliefs, everything, transactions.offsets, external, keep=0.01)
    assert other.digest_ == made.digest_
    before, after = (one.score(transactions).probability for one in (made, other))
    assert after.mean() > before.mean() + 0.3


@every_kind
def test_the_reference_of_drift_has_the_scores_of_the_causes(kind: str) -> None:
    made, transactions = chains_detector(kind), payments().transactions
    reference, split = made.calibration_.reference, time_split(transactions)
    panel = made.features_.transform(transactions)
    expected = rank(made, transactions, panel)[np.sort(split.calibration)]
    assert reference.ranker_scores is not None
    np.testing.assert_allclose(np.sort(reference.ranker_scores), np.sort(expected), atol=1e-6)


def test_the_amount_matters_to_the_intruder() -> None:
    """Ten times the amount of a customer with a long history raises the intruder's probability."""
    made, data = chains_detector(), payments()
    last = data.live_order[-1]
    frame_row = data.rows[data.transactions.file_rows[last]]
    own = np.flatnonzero(data.transactions.customer_codes == data.transactions.customer_codes[last])
    state = None
    for place in own[:-1]:
        state, _ = made.score_one(state, {**data.rows[data.transactions.file_rows[place]]})
    usual = made.score_one(state, frame_row)[1].probability
    large = made.score_one(state, {**frame_row, AMOUNT: 10 * frame_row[AMOUNT]})[1]
    assert large.probability > 3 * usual
