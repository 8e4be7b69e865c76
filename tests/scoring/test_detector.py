"""Detectors: no look-ahead, live equals batch, no leaks between parts, clear errors."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone

from tests.features.sample_data import DAY, SHOP, Data, of_frame, shop_frame
from tests.scoring.detectors import (
    QUICK,
    customers_split,
    data_of,
    detector,
    model_of,
    replay_scores,
    time_split,
)
from turncoat import BaumWelchHMM, ConfigError, DataError, Detector, NotFittedError, VariationalHMM
from turncoat.data.reading import read
from turncoat.data.schema import Schema
from turncoat.data.splits import Split, split_by_customer
from turncoat.features import Features, FeatureState
from turncoat.scoring import DetectorState
from turncoat.scoring.calibration import TEMPERATURES


def arrays_of(made: Detector) -> dict[str, np.ndarray]:
    """Every number of a fitted detector."""
    found: dict[str, Any] = {
        f"model.{name}": value
        for name, value in vars(made.model_.params_).items()
        if name[0] != "_"
    }
    scales = made.features_.plan_.scales._asdict()
    found |= {f"scales.{name}": value for name, value in scales.items()}
    for mode, regimes in {
        **made.calibration_.regimes,
        "in_sample": made.calibration_.in_sample,
    }.items():
        found |= {
            f"{mode}.{name}": getattr(regimes, name) for name in ("mass", "frauds", "evidence")
        }
    found["temporal_share"], found["temperature"] = (
        made.calibration_.temporal_share,
        made.model_.temperature,
    )
    flat = {}
    for name, value in found.items():
        parts = value if isinstance(value, tuple) else (value,)
        flat |= {f"{name}.{i}": np.asarray(part) for i, part in enumerate(parts)}
    return flat


def differing(one: Detector, other: Detector) -> set[str]:
    first, second = arrays_of(one), arrays_of(other)
    assert first.keys() == second.keys()
    return {name for name, value in first.items() if not np.array_equal(value, second[name])}


# ---------- time


def with_another_future(frame: pl.DataFrame, after: float) -> pl.DataFrame:
    """The same file in which everything later than a moment is otherwise, labels included."""
    later = pl.col("at") > after
    return frame.with_columns(
        paid=pl.when(later).then(pl.col("paid") * 50 + 1).otherwise(pl.col("paid")),
        age=pl.when(later).then(None).otherwise(pl.col("age")),
        device=pl.when(later).then(pl.lit("emulator")).otherwise(pl.col("device")),
        shop=pl.when(later).then(pl.lit("s0")).otherwise(pl.col("shop")),
        fraud=pl.when(later).then(1 - pl.col("fraud")).otherwise(pl.col("fraud")),
    )


@pytest.mark.parametrize(
    ("kind", "transitions"),
    [
        ("point", "per-row"),
        ("expected-log", "per-row"),
        ("predictive", "per-row"),
        ("expected-log", "continuous"),
    ],
)
@pytest.mark.parametrize("day", [5, 30, 50])
def test_no_filtered_score_knows_what_comes_after_it(kind: str, transitions: str, day: int) -> None:
    made, frame = detector("shop", kind, transitions=transitions), shop_frame(700, 3)
    whole = made.score(data_of("shop").transactions)
    early = whole.times <= day * DAY
    assert 30 < early.sum() < 680
    for other in (frame.filter(pl.col("at") <= day * DAY), with_another_future(frame, day * DAY)):
        found = made.score(read(other, SHOP))
        kept = found.times <= day * DAY
        np.testing.assert_array_equal(found.ids[kept], whole.ids[early])
        np.testing.assert_array_equal(found.belief[kept], whole.belief[early])
        np.testing.assert_array_equal(found.probability[kept], whole.probability[early])
        np.testing.assert_array_equal(found.variance[kept], whole.variance[early])
    altered = made.score(read(with_another_future(frame, day * DAY), SHOP), mode="smoothed")
    smoothed = made.score(data_of("shop").transactions, mode="smoothed")
    assert not np.array_equal(altered.belief[early], smoothed.belief[early])


# Batch emissions are summed in the working precision, live ones in float64. In float32 the log
# density of hundreds of cells is off by a millionth, visible where two regimes are equally likely.
LIVE_TOLERANCE = {"float64": 1e-9, "float32": 2e-4}


@pytest.mark.parametrize("precision", list(LIVE_TOLERANCE))
@pytest.mark.parametrize(
    ("data", "kind", "features", "transitions"),
    [
        ("shop", "expected-log", "engineered", "per-row"),
        ("shop", "predictive", "engineered", "per-row"),
        ("shop", "point", "processed", "per-row"),
        ("handbook", "expected-log", "engineered", "per-row"),
        ("handbook", "point", "engineered", "per-row"),
        ("ieee", "expected-log", "engineered", "per-row"),
        ("ieee", "predictive", "processed", "per-row"),
        ("shop", "expected-log", "engineered", "continuous"),
        ("shop", "point", "processed", "continuous"),
        ("handbook", "predictive", "engineered", "continuous"),
        ("handbook", "point", "engineered", "continuous"),
    ],
)
def test_a_file_replayed_row_by_row_has_the_scores_of_the_file(
    data: str, kind: str, features: str, transitions: str, precision: str
) -> None:
    made = detector(data, kind, features, precision=precision, transitions=transitions)
    file = data_of(data)
    whole, live = made.score(file.transactions), replay_scores(made, file)
    tolerance = LIVE_TOLERANCE[precision]
    np.testing.assert_allclose([score.belief for score in live], whole.belief, atol=tolerance)
    np.testing.assert_allclose(
        [score.probability for score in live], whole.probability, atol=tolerance
    )
    np.testing.assert_allclose([score.raw for score in live], whole.raw, atol=tolerance)
    np.testing.assert_allclose(
        [score.entropy for score in live], whole.entropy, atol=10 * tolerance
    )
    np.testing.assert_array_equal([score.n_seen for score in live], whole.n_seen)
    if precision == "float64":
        np.testing.assert_allclose(
            [score.interval for score in live], np.transpose(whole.interval()), atol=1e-6
        )
        sure = np.sort(whole.belief, axis=1)[:, -1] - np.sort(whole.belief, axis=1)[:, -2] > 1e-6
        np.testing.assert_array_equal(
            np.array([score.regime for score in live])[sure], whole.regime[sure]
        )
    if data != "ieee":
        assert len(np.unique(whole.probability.round(6))) > 50


def test_scores_are_filtered_and_corrected_unless_asked_otherwise() -> None:
    made, transactions = detector(), data_of("shop").transactions
    panel = made.features_.transform(transactions)
    plain = made.score(transactions)
    assert (plain.mode, plain.kind) == ("filtered", "corrected")
    exact = copy(made.model_)
    exact.precision = "float64"  # whatever it was fitted in
    np.testing.assert_array_equal(plain.belief, exact.filter(panel).probs)
    np.testing.assert_array_equal(plain.value, plain.probability)
    regimes = made.calibration_.regimes["filtered"]
    np.testing.assert_allclose(plain.probability, plain.belief @ regimes.mean_rates)
    np.testing.assert_allclose(
        plain.variance,
        np.einsum("nk,kj,nj->n", plain.belief, regimes.rate_covariance, plain.belief),
    )
    smoothed = made.score(transactions, mode="smoothed")
    np.testing.assert_array_equal(smoothed.belief, exact.smooth(panel).probs)
    np.testing.assert_allclose(
        smoothed.probability, smoothed.belief @ made.calibration_.regimes["smoothed"].mean_rates
    )
    assert not np.allclose(smoothed.belief, plain.belief)
    for mode in ("filtered", "smoothed"):
        raw = made.score(transactions, mode=mode, kind="raw")
        np.testing.assert_array_equal(
            raw.value, raw.belief[:, made.calibration_.regimes[mode].fraud_state]
        )
        np.testing.assert_array_equal(raw.value, raw.raw)
    for wrong in ({"mode": "batch"}, {"kind": "calibrated"}):
        with pytest.raises(ConfigError, match="must be one of"):
            made.score(transactions, **wrong)


def test_scores_say_whose_they_are() -> None:
    made, transactions = detector(), data_of("shop").transactions
    scores = made.score(transactions)
    frame = scores.frame()
    np.testing.assert_array_equal(frame["id"].to_numpy(), transactions.ids)
    np.testing.assert_array_equal(
        frame["customer"].to_numpy(), transactions.customers[transactions.customer_codes]
    )
    np.testing.assert_array_equal(frame["time"].to_numpy(), transactions.times)
    np.testing.assert_array_equal(frame["label"].to_numpy(), transactions.labels)
    for customer in frame["customer"].unique():
        assert frame.filter(pl.col("customer") == customer)["n_seen"].to_list() == list(
            range(1, (frame["customer"] == customer).sum() + 1)
        )
    assert (frame["lower"] <= frame["probability"]).all()
    assert (frame["probability"] <= frame["upper"]).all()
    np.testing.assert_allclose(
        frame.select(pl.sum_horizontal(pl.col("^belief_.*$"))).to_series(), 1.0, atol=1e-9
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(scores.belief * np.log(scores.belief), axis=1)
    np.testing.assert_allclose(scores.entropy, entropy, atol=1e-12)


def test_first_transactions_are_scored_from_the_start_of_the_chain() -> None:
    made, file = detector("shop", precision="float64"), data_of("shop")
    whole = made.score(file.transactions)
    first = file.transactions.offsets[:-1]
    for i in first:
        _, score = made.score_one(None, file.rows[file.transactions.file_rows[i]] | {"shop": None})
        assert score.n_seen == 1
        assert np.isfinite(score.probability)
    assert (whole.n_seen[first] == 1).all()


def test_a_transaction_whose_label_will_not_follow_says_nothing_about_risk() -> None:
    made, row = detector("shop", "point"), {**data_of("shop").rows[0], "shop": "s1"}
    known = made.features_.feature_names[0].index("counterparty_known_month")

    def known_later(**settings: bool) -> np.float32:
        state, _ = made.score_one(None, row | {"at": 0.0}, **settings)
        before = FeatureState(None, state.counterparties)
        _, found = made.features_.step(before, row | {"at": 60 * DAY})
        return found.continuous[known]

    assert known_later(label_follows=False) < known_later() == known_later(label_follows=True)


@pytest.mark.parametrize("features", ["processed", "engineered"])
def test_a_file_without_labels_is_scored(features: str) -> None:
    """Without labels scores are the same, except for what they say about the counterparty."""
    made, frame = detector("shop", "expected-log", features), shop_frame(700, 3)
    scores = made.score(read(frame.drop("fraud"), SHOP, with_labels=False))
    assert scores.labels is None
    assert "label" not in scores.frame().columns
    assert np.isfinite(scores.probability).all()
    np.testing.assert_array_equal(
        scores.probability, made.score(read(frame, SHOP, with_labels=False)).probability
    )
    labelled = made.score(data_of("shop").transactions)
    assert np.array_equal(scores.probability, labelled.probability) == (features == "processed")


# ---------- what is seen


def poisoned(data: Data, rows: np.ndarray, labels_only: bool = False) -> Any:
    """The file with other amounts, names, counterparties and labels on some rows."""
    places = data.transactions.file_rows[rows]
    frame = shop_frame(700, 3)
    hit = pl.Series(np.isin(np.arange(frame.height), places))
    changes = {"fraud": pl.when(hit).then(1 - pl.col("fraud")).otherwise(pl.col("fraud"))}
    if not labels_only:
        changes["paid"] = pl.when(hit).then(1e6).otherwise(pl.col("paid"))
        changes["age"] = pl.when(hit).then(-4000.0).otherwise(pl.col("age"))
        for column in ("device", "town", "shop"):
            changes[column] = pl.when(hit).then(pl.lit("poison")).otherwise(pl.col(column))
    return of_frame(frame.with_columns(**changes)).transactions


SPLITS = {"by customer": customers_split, "by time": time_split}
every_split = pytest.mark.parametrize("split_by", list(SPLITS))
every_supervision = pytest.mark.parametrize(
    "settings", [{}, {"supervision": "anchored"}, {"temperature": "auto"}], ids=str
)


def fit_lines(transactions: Any, split: Split, settings: dict[str, Any]) -> Detector:
    return Detector(Features(min_count=4), model_of("expected-log"), **settings).fit(
        transactions, split
    )


@every_split
@every_supervision
def test_nothing_fitted_sees_the_test_part(split_by: str, settings: dict[str, Any]) -> None:
    data = data_of("shop")
    split = SPLITS[split_by](data.transactions)
    honest = fit_lines(data.transactions, split, settings)
    changed = poisoned(data, split.test)
    assert differing(honest, fit_lines(changed, split, settings)) == set()
    assert not np.array_equal(
        honest.score(changed).probability[split.test],
        honest.score(data.transactions).probability[split.test],
    )


@every_split
@every_supervision
def test_calibration_labels_change_the_rates_and_not_the_model(
    split_by: str, settings: dict[str, Any]
) -> None:
    data = data_of("shop")
    split = SPLITS[split_by](data.transactions)
    honest = fit_lines(data.transactions, split, settings)
    changed = differing(
        honest, fit_lines(poisoned(data, split.calibration, labels_only=True), split, settings)
    )
    assert {"filtered.frauds.0", "smoothed.frauds.0"} <= changed
    assert not {
        name for name in changed if name.startswith(("model", "scales", "in_sample", "temperature"))
    }
    everything = differing(honest, fit_lines(poisoned(data, split.calibration), split, settings))
    assert "filtered.mass.0" in everything
    assert not {
        name
        for name in everything
        if name.startswith(("model", "scales", "in_sample", "temperature"))
    }


@every_split
def test_the_selection_part_chooses_the_temperature_and_nothing_else_of_the_model(
    split_by: str,
) -> None:
    data = data_of("shop")
    split = SPLITS[split_by](data.transactions)
    honest = fit_lines(data.transactions, split, {"temperature": "auto"})
    changed = differing(
        honest, fit_lines(poisoned(data, split.selection), split, {"temperature": "auto"})
    )
    assert not {name for name in changed if name.startswith(("model", "scales"))}
    assert honest.model_.temperature in TEMPERATURES
    unlabelled = fit_lines(data.transactions, split, {})
    assert unlabelled.model_.temperature == 1.0


def test_fit_labels_matter_to_an_anchored_fit_only() -> None:
    """A file without a counterparty, whose risk would carry labels into the features."""
    frame = shop_frame(700, 3)
    schema = replace(SHOP, counterparties=())
    data = of_frame(frame, schema)
    split = time_split(data.transactions)
    hit = pl.Series(np.isin(np.arange(frame.height), data.transactions.file_rows[split.fit]))
    other = of_frame(
        frame.with_columns(fraud=pl.when(hit).then(1 - pl.col("fraud")).otherwise(pl.col("fraud"))),
        schema,
    ).transactions
    for settings, matters in (({}, False), ({"supervision": "anchored"}, True)):
        changed = differing(
            fit_lines(data.transactions, split, settings), fit_lines(other, split, settings)
        )
        assert any(name.startswith("model") for name in changed) == matters


def test_rows_left_out_before_a_part_are_history_to_it() -> None:
    """A customer known for long is not new at the beginning of the fit part."""
    transactions = data_of("shop").transactions
    whole = time_split(transactions)
    first = whole.fit[np.argsort(transactions.times[whole.fit], kind="stable")[:60]]
    split = replace(whole, fit=np.setdiff1d(whole.fit, first), excluded=np.sort(first))
    made = fit_lines(transactions, split, {})
    without = np.setdiff1d(np.arange(transactions.n_rows), first)
    renumbered = {name: np.searchsorted(without, rows) for name, rows in split.parts.items()}
    blank = fit_lines(
        transactions.take(without), replace(split, **renumbered, excluded=np.empty(0, np.int64)), {}
    )
    assert any(name.startswith("model") for name in differing(made, blank))


# ---------- supervision


def test_anchored_states_hold_the_fraud() -> None:
    data = data_of("handbook")
    transactions = data.transactions
    for n_fraud in (1, 2):
        made = Detector(
            Features(), model_of("expected-log", 4), supervision="anchored", n_fraud_states=n_fraud
        )
        made.fit(transactions, time_split(transactions))
        in_sample = made.calibration_.in_sample
        assert in_sample.fraud_state >= 4 - n_fraud
        assert in_sample.enrichment[4 - n_fraud :].max() > 3


@pytest.mark.parametrize("n_fraud", [0, 3, -1, 1.5, True, "1", None])
def test_as_many_fraud_states_as_leave_a_genuine_one(n_fraud: Any) -> None:
    data = data_of("shop")
    with pytest.raises(ConfigError, match="n_fraud_states"):
        fit_lines(
            data.transactions,
            time_split(data.transactions),
            {"supervision": "anchored", "n_fraud_states": n_fraud},
        )


@pytest.mark.parametrize(
    "settings",
    [
        {"supervision": "full"},
        {"supervision": None},
        {"label_noise": 0.5},
        {"label_noise": -0.1},
        {"label_noise": "some"},
        {"label_noise": None},
        {"temperature": 0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "hot"},
        {"temperature": None},
        {"temperature": True},
    ],
    ids=str,
)
def test_bad_settings_are_named(settings: dict[str, Any]) -> None:
    data = data_of("shop")
    with pytest.raises(ConfigError, match=next(iter(settings))):
        fit_lines(data.transactions, time_split(data.transactions), settings)


def test_a_model_s_own_temperature_is_not_forgotten_in_silence() -> None:
    data = data_of("shop")
    split = time_split(data.transactions)
    with pytest.raises(ConfigError, match="temperature"):
        Detector(Features(), model_of("point", temperature=4.0)).fit(data.transactions, split)
    made = Detector(Features(), model_of("point", temperature=4.0), temperature=4.0).fit(
        data.transactions, split
    )
    assert made.model_.temperature == 4.0


def one_part(transactions: Any, **rows: Any) -> Split:
    whole = time_split(transactions)
    return replace(
        whole, **{name: np.sort(np.asarray(chosen, np.int64)) for name, chosen in rows.items()}
    )


def test_data_that_cannot_be_fitted_are_refused_in_words() -> None:
    frame, transactions = shop_frame(700, 3), data_of("shop").transactions
    split = time_split(transactions)
    fit = split.fit

    def attempt(transactions: Any, split: Split | None, **settings: Any) -> None:
        Detector(Features(min_count=4), model_of("point"), **settings).fit(transactions, split)

    with pytest.raises(DataError, match="customers: found 1, too few"):
        attempt(read(frame.with_columns(who=pl.lit("me")), SHOP), None)
    with pytest.raises(
        DataError,
        match=r"calibration part has 0 known frauds, 1\d\d known genuine and 0 unlabelled rows, "
        "but measuring the regimes' fraud rates needs one of each",
    ):
        attempt(read(frame.with_columns(fraud=pl.lit(0)), SHOP), split)
    with pytest.raises(DataError, match=r"has 1\d\d known frauds, 0 known genuine and 0"):
        attempt(read(frame.with_columns(fraud=pl.lit(1)), SHOP), split)
    with pytest.raises(DataError, match="needs labels"):
        attempt(read(frame.drop("fraud"), replace(SHOP, label=None)), split)
    with pytest.raises(DataError, match="needs labels"):
        attempt(read(frame.drop("fraud"), SHOP, with_labels=False), split, supervision="anchored")
    with pytest.raises(ConfigError, match="no calibration part"):
        attempt(transactions, replace(split, calibration=np.empty(0, np.int64)))
    with pytest.raises(ConfigError, match="no selection part"):
        attempt(transactions, replace(split, selection=np.empty(0, np.int64)), temperature="auto")
    for label in (0, 1):
        one_sided = fit[transactions.labels[fit] == label]
        with pytest.raises(
            DataError,
            match=r"the fit part has (0 known frauds|\d+ known frauds, 0 known genuine).*this fit",
        ):
            attempt(transactions, one_part(transactions, fit=one_sided), supervision="anchored")


def test_short_histories_are_dropped_only_where_the_others_have_half_of_the_rows() -> None:
    transactions = data_of("shop").transactions
    free = np.setdiff1d(np.arange(transactions.n_rows), time_split(transactions).calibration)
    counts = np.bincount(transactions.customer_codes[free])
    starts = np.searchsorted(transactions.customer_codes[free], np.arange(len(counts)))
    four = free[np.concatenate([starts[k] + np.arange(4) for k in range(len(counts))])]
    long = free[starts[0] : starts[0] + 10]
    features = Features("processed", min_count=4)
    for fit, kept in (
        (four, four),  # nobody has five
        (np.union1d(four, long), np.union1d(four, long)),  # ten of 54 rows
        (np.union1d(four[:12], long), long),  # ten of 18 rows
    ):
        split = one_part(transactions, fit=fit)
        made = Detector(features, model_of("point", n_states=2)).fit(transactions, split)
        assert made.calibration_.in_sample.n_rows == pytest.approx(len(kept))


def test_labels_are_required_of_the_rows_that_are_fitted() -> None:
    """One long customer without fraud among many short ones with fraud."""
    transactions = data_of("shop").transactions
    free = np.setdiff1d(np.arange(transactions.n_rows), time_split(transactions).calibration)
    codes, labels = transactions.customer_codes[free], transactions.labels[free]
    long = free[(codes == 0) & (labels == 0)][:5]
    short = [free[codes == k][:4] for k in range(1, 10)]
    fit = np.concatenate([long, *short])
    assert transactions.labels[fit].max() == 1
    made = Detector(
        Features("processed", min_count=4),
        model_of("point", n_states=2),
        supervision="anchored",
        label_noise=0.1,
    )
    made.fit(transactions, one_part(transactions, fit=fit))
    assert made.calibration_.in_sample.frauds.sum() == pytest.approx(transactions.labels[fit].sum())
    genuine = fit[transactions.labels[fit] == 0]
    with pytest.raises(DataError, match="the fit part has 0 known frauds"):
        made.fit(transactions, one_part(transactions, fit=np.setdiff1d(genuine, long)))


@pytest.mark.parametrize("label", [0, 1])
def test_a_fit_part_of_one_kind_is_enough_without_supervision(label: int) -> None:
    transactions = data_of("shop").transactions
    split = time_split(transactions)
    kept = split.fit[transactions.labels[split.fit] == label]
    made = Detector(Features(min_count=4), model_of("point", 2)).fit(
        transactions, replace(split, fit=kept)
    )
    assert np.isfinite(made.score(transactions).probability).all()
    assert made.calibration_.in_sample.base_rate == label
    made.calibration_.in_sample.describe()


@pytest.mark.parametrize("n_states", [1, 12])
def test_one_state_and_far_too_many(n_states: int) -> None:
    transactions = data_of("shop").transactions
    split = time_split(transactions)
    made = Detector(Features(min_count=4), model_of("point", n_states)).fit(transactions, split)
    scores = made.score(transactions)
    assert ((scores.probability > 0) & (scores.probability < 1)).all()
    low, high = scores.interval()
    assert ((low <= scores.probability) & (scores.probability <= high)).all()
    _, score = made.score_one(None, data_of("shop").rows[0])
    assert np.isfinite(score.probability)
    if n_states == 1:
        assert score.reasons == ()
        np.testing.assert_allclose(
            scores.probability, transactions.labels[split.calibration].mean(), rtol=0.02
        )


def test_without_a_split_features_or_model_there_are_defaults() -> None:
    data = data_of("shop")
    made = Detector().fit(data.transactions)
    assert isinstance(made.model_, VariationalHMM)
    assert made.model_.n_states == 4
    split = split_by_customer(data.transactions.customer_codes, data.transactions.times)
    assert made.regimes.n_rows == pytest.approx(len(split.calibration))


def test_scikit_learn_conventions() -> None:
    made = Detector(
        Features("processed"),
        BaumWelchHMM(3, **QUICK),
        supervision="anchored",
        n_fraud_states=2,
        label_noise=0.01,
    )
    copy = clone(made)
    assert copy.get_params(deep=False).keys() == {
        "features",
        "model",
        "supervision",
        "n_fraud_states",
        "label_noise",
        "temperature",
        "evidence",
        "kind",
        "trees",
    }
    assert copy.model is not made.model
    assert copy.get_params()["model__n_states"] == 3
    copy.set_params(model__n_states=2, features__kind="engineered", temperature=2.0)
    assert (copy.model.n_states, copy.features.kind, copy.temperature) == (2, "engineered", 2.0)
    assert made.model.n_states == 3
    data = data_of("shop")
    assert made.fit(data.transactions, time_split(data.transactions)) is made
    assert not hasattr(made.model, "params_")  # what was given is not what is fitted
    assert not hasattr(made.features, "plan_")
    assert not hasattr(clone(made), "parts_")
    assert "Detector" in repr(made)
    for use in (
        lambda d: d.score(data.transactions),
        lambda d: d.score_one(None, {}),
        lambda d: d.regimes,
        lambda d: d.save("nowhere"),
    ):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            use(clone(made))


def test_the_same_settings_give_the_same_bits_whatever_the_threads() -> None:
    data = data_of("shop")
    split = time_split(data.transactions)
    one, other = (
        Detector(Features(), VariationalHMM(3, n_restarts=2, max_iter=8, n_threads=n)).fit(
            data.transactions, split
        )
        for n in (1, 2)
    )
    assert differing(one, other) == set()


# ---------- states


def test_states_of_another_detector_are_refused() -> None:
    made, row = detector(), data_of("shop").rows[0]
    state, _ = made.score_one(None, row)
    others = [
        detector(kind="point"),
        detector(n_states=2),
        detector(features="processed"),
        detector("handbook"),
        detector(transitions="continuous"),
    ]
    for other in others:
        with pytest.raises(DataError, match="made by another detector"):
            other.score_one(DetectorState(state.customer), data_of("shop").rows[1])
        with pytest.raises(DataError, match="made by another detector"):
            other.live.condition(DetectorState(state.customer), 1)


def test_damaged_states_are_refused() -> None:
    made, rows = detector(), data_of("shop").rows
    state, _ = made.score_one(None, rows[0])
    whole = state.customer
    assert whole is not None
    for broken in (
        b"",
        whole[:3],
        whole[:-1],
        whole + b"\0",
        bytes([whole[0] ^ 1]) + whole[1:],
        whole[:16] + b"\xff" * 24 + whole[40:],
    ):
        with pytest.raises(DataError):
            made.score_one(DetectorState(broken), rows[1])
    with pytest.raises(DataError, match="counterparty's state"):
        made.score_one(
            DetectorState(None, (b"not a record",)),
            next(row for row in rows if row["shop"] is not None),
        )


def test_a_detector_fitted_again_refuses_the_states_of_its_first_fit() -> None:
    data = data_of("shop")
    split = time_split(data.transactions)
    made = Detector(Features(), model_of("point")).fit(data.transactions, split)
    state, _ = made.score_one(None, data.rows[0])
    made.set_params(model__random_state=5, model__max_iter=3).fit(data.transactions, split)
    with pytest.raises(DataError, match="another detector"):
        made.score_one(state, data.rows[1])
    again, score = made.score_one(None, data.rows[0])
    made.score_one(again, data.rows[1])
    assert len(score.belief) == 3


def test_a_failed_fit_leaves_no_half_of_it() -> None:
    data = data_of("shop")
    split = time_split(data.transactions)
    made = Detector(Features(), model_of("point")).fit(data.transactions, split)
    made.set_params(supervision="anchored", n_fraud_states=7)
    with pytest.raises(ConfigError):
        made.fit(data.transactions, split)
    with pytest.raises(NotFittedError, match="this detector is not fitted yet"):
        made.score(data.transactions)


def test_states_are_bytes_of_one_size_and_are_not_changed() -> None:
    made, rows = detector(), data_of("shop").rows
    state = DetectorState()
    sizes = set()
    for k, row in enumerate(rows[:12]):
        before = state.customer, state.counterparties
        state, _ = made.score_one(DetectorState(state.customer), row | {"at": k * DAY})
        again, _ = made.score_one(DetectorState(before[0]), row | {"at": k * DAY})
        assert again == state
        sizes.add(len(state.customer or b""))
    assert len(sizes) == 1


# ---------- explanation


def test_the_path_of_a_customer_is_that_of_the_scores() -> None:
    made, transactions = detector("shop", "predictive"), data_of("shop").transactions
    scores = made.score(transactions)
    own = np.flatnonzero(scores.customers == "c3")
    path = made.explain(transactions, "c3")
    assert [identity for identity, _ in path] == transactions.ids[own].tolist()
    for i, (_, score) in zip(own, path, strict=True):
        assert score.probability == pytest.approx(scores.probability[i], abs=1e-12)
        np.testing.assert_allclose(score.belief, scores.belief[i], atol=1e-12)
        assert score.n_seen == scores.n_seen[i]
        assert score.interval[0] <= score.probability <= score.interval[1]
    wanted = transactions.ids[own[4]]
    (only,) = made.explain(transactions, "c3", wanted)
    assert only == path[4]
    with pytest.raises(DataError, match="no customer 'nobody'"):
        made.explain(transactions, "nobody")
    with pytest.raises(DataError, match="has no transaction '12345'"):
        made.explain(transactions, "c3", 12345)


def test_a_file_of_another_schema_is_refused() -> None:
    other = Schema(customer="who", time="at", continuous=("paid",), label="fraud")
    with pytest.raises(DataError, match="Read it with the same schema"):
        detector().score(read(shop_frame(50), other))


def test_the_temporal_share_tells_a_chain_from_none() -> None:
    """Weak rows and a sticky chain: beliefs are far from those of single rows."""
    rng = np.random.default_rng(0)
    regimes = np.repeat(rng.random(400) < 0.3, 10)

    def share(signal: np.ndarray) -> float:
        n = len(signal)
        frame = pl.DataFrame(
            {
                "who": np.repeat(np.arange(n // 40), 40),
                "at": np.tile(np.arange(40.0), n // 40),
                "x": rng.normal(size=n) + 1.5 * signal,
                "fraud": (rng.random(n) < 0.1 + 0.4 * signal).astype(int),
            }
        )
        data = read(frame, Schema(customer="who", time="at", continuous=("x",), label="fraud"))
        made = Detector(Features("processed"), BaumWelchHMM(2, n_restarts=1, max_iter=60)).fit(
            data, customers_split(data)
        )
        return made.calibration_.temporal_share

    chained, unchained = share(regimes), share(rng.permutation(regimes))
    assert 0 <= unchained < chained <= 1
    assert chained > 0.1


def test_a_chain_in_continuous_time_forgets_with_time() -> None:
    """The features are those of the transaction alone; a late transaction counts as now."""
    made = detector("shop", "point", "processed", transitions="continuous")
    row, *others = data_of("shop").rows[:9]
    starts = [made.score_one(None, other | {"at": 0.0})[0] for other in others]
    spreads = {}
    for hours in (-24, 0, 1, 24, 24_000):
        scores = [made.score_one(state, row | {"at": 3600.0 * hours})[1] for state in starts]
        spreads[hours] = np.ptp([score.belief for score in scores], axis=0).max()
    assert spreads[-24] == spreads[0] > spreads[1] > spreads[24] > 1e-6 > spreads[24_000]
