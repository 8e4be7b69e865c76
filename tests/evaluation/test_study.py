"""The study: metrics against scikit-learn's, stopped and resumed, on data without a signal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from scipy.stats import wilcoxon
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from tests.evaluation.samples import SCHEMA, make_portfolio
from turncoat import BundleError, ConfigError, DataError, load
from turncoat.data import Transactions, read
from turncoat.data.splits import DAY, split_prequential
from turncoat.evaluation import study
from turncoat.evaluation.evaluator import Evaluator, evaluate
from turncoat.evaluation.protocols import CALIBRATION, TEST, TRAIN, Fold, SplitProtocol
from turncoat.evaluation.results import CandidateResult, Results, load_results, save_results
from turncoat.evaluation.settings import StudySettings
from turncoat.evaluation.study import Study, run_study
from turncoat.selection import choose_width

QUIET = Console(quiet=True)
QUICK = StudySettings(
    states=3,
    n_restarts=1,
    max_iter=10,
    n_trials=0,
    n_resamples=60,
    seeds=(1, 2),
    include=("paid", "amount_to_mean", "count_hour", "device"),
)


def shuffled(seed: int, planted: bool = False) -> Transactions:
    """Labels that nothing tells; or, planted, a column that tells each row's own."""
    made = make_portfolio(300, seed)
    labels = np.random.default_rng(seed).permutation(made["fraud"].to_numpy())
    if planted:
        made = made.with_columns(
            age=pl.Series(labels + np.random.default_rng(1).normal(0, 0.2, len(labels)))
        )
    return read(made.with_columns(fraud=pl.Series(labels)), SCHEMA)


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Results, Path]:
    folder = tmp_path_factory.mktemp("run") / "study"
    found = run_study(read(make_portfolio(), SCHEMA), QUICK, folder, QUIET)
    return found, evaluate(found), folder


def of(results: Results, name: str) -> CandidateResult:
    return next(one for one in results.candidates if one.name == name)


def test_every_candidate_is_there_once(studied: tuple[Study, Results, Path]) -> None:
    names = [one.name for one in studied[1].candidates]
    assert len(set(names)) == len(names)
    expected = {
        "champion",
        "XGBoost",
        "hybrid",
        "regime-calibrated XGBoost",
        "logistic regression",
        "Isolation Forest",
    }
    expected |= {f"XGBoost, {how}" for how in ("Platt", "isotonic", "Venn-Abers")}
    for tier in ("baum-welch", "variational", "variational, anchored"):
        expected |= {
            f"{tier}, {kind}, {mode}"
            for kind in ("raw", "corrected")
            for mode in ("filtered", "smoothed")
        }
        expected |= {f"{tier}, in-sample rates", f"{tier}, corrected, filtered, isotonic"}
    assert expected <= set(names)
    assert set(studied[1].scoring_variants) <= set(names)


def test_the_figures_are_those_of_the_scores(studied: tuple[Study, Results, Path]) -> None:
    found, results, _ = studied
    labels = found.folds[0].labels(TEST)
    for name in (
        "variational, corrected, filtered",
        "XGBoost",
        "hybrid",
        "variational, raw, smoothed",
    ):
        scores = [found.scores(0, seed, name)[TEST] for seed in (1, 2)]
        one = of(results, name)
        for metric, by_hand in (
            ("average_precision", average_precision_score),
            ("auroc", roc_auc_score),
        ):
            values = [by_hand(labels, s) for s in scores]
            figure = one.metrics[metric]
            assert figure.value == pytest.approx(np.mean(values), rel=1e-9)
            assert figure.seed_std == pytest.approx(np.std(values, ddof=1), abs=1e-9)
            assert figure.customer_interval is not None
            assert figure.customer_interval[0] <= figure.customer_interval[1]
    assert "log_loss" not in of(results, "variational, raw, smoothed").metrics
    losses = [log_loss(labels, found.scores(0, seed, "XGBoost")[TEST]) for seed in (1, 2)]
    assert of(results, "XGBoost").metrics["log_loss"].value == pytest.approx(
        np.mean(losses), rel=1e-9
    )


def test_differences_are_between_the_figures(studied: tuple[Study, Results, Path]) -> None:
    results = studied[1]
    assert {(one.first, one.second) for one in results.comparisons} >= {
        ("hybrid", "XGBoost"),
        ("regime-calibrated XGBoost", "XGBoost, isotonic"),
    }
    for one in results.comparisons:
        values = [of(results, name).metrics[one.metric].value for name in (one.first, one.second)]
        assert one.difference == pytest.approx(values[0] - values[1])  # type: ignore[operator]
        assert one.customer_interval[0] <= one.customer_interval[1]
        assert (one.wilcoxon_p is None) == (one.metric != "log_loss")
    found = studied[0]
    labels = found.folds[0].labels(TEST)
    losses = []
    for name in ("hybrid", "XGBoost"):
        scores = found.scores(0, 1, name)[TEST]
        losses.append(-np.log(np.where(labels == 1, scores, 1 - scores)))
    one = next(
        c
        for c in results.comparisons
        if (c.first, c.second, c.metric) == ("hybrid", "XGBoost", "log_loss")
    )
    assert one.wilcoxon_p == pytest.approx(wilcoxon(losses[0] - losses[1]).pvalue)


def test_a_detector_scores_as_in_the_study(studied: tuple[Study, Results, Path]) -> None:
    found, _, folder = studied
    detector = load(folder / "fits" / "fold-1-seed-1" / "anchored" / "detector")
    fold = found.folds[0]
    scores = detector.score(found.transactions)
    np.testing.assert_allclose(
        scores.probability[fold.rows(TEST)],
        found.scores(0, 1, "variational, anchored, corrected, filtered")[TEST],
        atol=1e-6,
    )


def test_slices_are_parts_of_the_whole(studied: tuple[Study, Results, Path]) -> None:
    found, results, _ = studied
    n_rows, frauds = len(found.folds[0].rows(TEST)), int(found.folds[0].labels(TEST).sum())
    by_length = [table for table in results.slices if table.title == "by length of history"]
    assert len(by_length) == 6
    for table in by_length:
        assert sum(row.n_rows for row in table.rows) == n_rows
        assert sum(row.n_frauds for row in table.rows) == frauds
    assert found.folds[0].n_earlier.min() == 0


def test_scenarios_have_tables_of_their_own(studied: tuple[Study, Results, Path]) -> None:
    found, _, _ = studied
    kinds = np.where(
        np.asarray(found.transactions.labels) == 1,
        1 + found.transactions.customer_codes // 4 % 2,
        0,
    )
    tables = [table for table in evaluate(found, kinds).slices if table.title == "by scenario"]
    assert [row.label for row in tables[0].rows] == ["scenario 1", "scenario 2"]
    assert sum(row.n_frauds for row in tables[0].rows) == int(found.folds[0].labels(TEST).sum())


def test_baselines_have_the_rows_and_facts_of_the_detectors(
    studied: tuple[Study, Results, Path],
) -> None:
    """And a fit row's facts hold nothing of held-out customers."""
    found, _, _ = studied
    fold = found.folds[0]
    for part in (TRAIN, CALIBRATION, TEST):
        assert len(fold.columns[part]) == len(fold.rows(part)) == len(fold.labels(part))
    later = np.isin(
        np.arange(found.transactions.n_rows),
        np.concatenate([fold.rows(CALIBRATION), fold.rows(TEST)]),
    )
    changed = replace(
        found.transactions,
        labels=np.where(
            later, 1 - np.asarray(found.transactions.labels), found.transactions.labels
        ),
    )
    other = Fold.fit(changed, fold.split, QUICK.make_features())
    np.testing.assert_array_equal(other.columns[TRAIN], fold.columns[TRAIN])


def test_calibration_afterwards_sees_the_calibration_rows_alone(
    studied: tuple[Study, Results, Path],
) -> None:
    found, _, _ = studied
    fold = found.folds[0]
    for name in ("XGBoost", "variational, corrected, filtered", "Isolation Forest"):
        scores = found.scores(0, 1, name)
        expected = (
            IsotonicRegression(out_of_bounds="clip")
            .fit(scores[CALIBRATION], fold.labels(CALIBRATION))
            .predict(scores[TEST])
        )
        np.testing.assert_allclose(
            Evaluator(found).scored(f"{name}, isotonic", 1)[0].scores, expected, atol=1e-9
        )


def stop_after(n_fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fit, done = study._fit_candidate, []

    def stopping(*arguments: Any) -> Any:
        if len(done) == n_fits:
            raise KeyboardInterrupt
        done.append(1)
        return fit(*arguments)

    monkeypatch.setattr(study, "_fit_candidate", stopping)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudySettings, Results]:
    settings = replace(QUICK, seeds=(1,), baselines=("xgboost",), tiers=("variational",))
    folder = tmp_path_factory.mktemp("whole") / "run"
    return settings, evaluate(run_study(read(make_portfolio(), SCHEMA), settings, folder, QUIET))


@pytest.mark.parametrize("n_fits", [1, 4])
def test_a_stopped_study_goes_on_to_the_same_results(
    n_fits: int,
    studied: tuple[Study, Results, Path],
    uninterrupted: tuple[StudySettings, Results],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, whole = uninterrupted
    transactions = read(make_portfolio(), SCHEMA)
    with monkeypatch.context() as patch:
        stop_after(n_fits, patch)
        with pytest.raises(KeyboardInterrupt):
            run_study(transactions, settings, tmp_path / "stopped", QUIET)
    assert (
        len(list((tmp_path / "stopped" / "fits" / "fold-1-seed-1").glob("*/scores/manifest.json")))
        == n_fits
    )
    assert evaluate(run_study(transactions, settings, tmp_path / "stopped", QUIET)) == whole
    shared = of(studied[1], "variational, corrected, filtered")
    assert shared.metrics["auroc"].by_fold != ()


def test_a_sweep_and_its_stability_are_part_of_it(tmp_path: Path) -> None:
    settings = replace(
        QUICK,
        states="auto",
        orders=(2, 3),
        n_stability=2,
        tiers=("variational",),
        baselines=(),
        seeds=(1,),
    )
    found = run_study(read(make_portfolio(), SCHEMA), settings, tmp_path / "run", QUIET)
    results = evaluate(found)
    (selection,) = results.selections
    assert [row.n_states for row in selection.orders] == [2, 3]
    assert selection.used == found.states.n_states["variational"]
    assert {row["n_states"] for row in selection.stability} >= {2.0, 3.0}
    assert results.regimes[0].rows[0].traits
    assert not [one for one in results.candidates if one.name == "hybrid"]


def aps(results: Results) -> dict[str, tuple[float, float]]:
    found = {}
    for one in results.candidates:
        interval = one.metrics["average_precision"].customer_interval
        assert interval is not None
        found[one.name] = interval
    return found


LEAK = replace(QUICK, seeds=(1,), n_resamples=200)


def test_with_shuffled_labels_nobody_finds_anything(tmp_path: Path) -> None:
    """Every candidate's average precision is at the base rate, give or take chance."""
    transactions = shuffled(5)
    found = run_study(transactions, LEAK, tmp_path / "run", QUIET)
    rate = found.folds[0].labels(TEST).mean()
    for name, (low, _) in aps(evaluate(found)).items():
        assert low < 1.15 * rate, name


def test_a_column_that_knows_the_label_is_noticed(tmp_path: Path) -> None:
    """So the test above can fail."""
    found = run_study(
        shuffled(5, planted=True), replace(LEAK, include=("paid", "age")), tmp_path / "run", QUIET
    )
    rate = found.folds[0].labels(TEST).mean()
    intervals = aps(evaluate(found))
    for name in (
        "XGBoost",
        "hybrid",
        "variational, anchored, corrected, filtered",
        "regime-calibrated XGBoost",
        "logistic regression",
    ):
        assert intervals[name][0] > 2 * rate, name


def test_the_paper_s_protocol_does_not_compare_on_the_same_rows(tmp_path: Path) -> None:
    made = make_portfolio().with_columns(
        who=pl.when(pl.int_range(pl.len()) % 40 == 0)
        .then(pl.lit("rare") + pl.col("id").cast(pl.String))
        .otherwise("who")
    )
    settings = replace(
        QUICK,
        protocol=SplitProtocol("paper"),
        seeds=(1,),
        tiers=("variational",),
        baselines=("isolation-forest", "xgboost"),
    )
    results = evaluate(run_study(read(made, SCHEMA), settings, tmp_path / "run", QUIET))
    assert any(one.code == "different_rows" for one in results.warnings)
    assert not [one for one in results.comparisons if one.second == "Isolation Forest"]
    assert [one for one in results.comparisons if one.second == "XGBoost"]


def test_the_handbook_protocol_has_folds(tmp_path: Path) -> None:
    protocol = SplitProtocol("handbook", train_days=42, n_folds=2)
    transactions = read(make_portfolio(400), SCHEMA)
    settings = replace(
        QUICK,
        protocol=protocol,
        seeds=(1,),
        tiers=("variational",),
        baselines=("isolation-forest",),
        include=("paid", "device"),
    )
    found = run_study(transactions, settings, tmp_path / "run", QUIET)
    results = evaluate(found)
    assert results.n_folds == 2
    assert len(of(results, "Isolation Forest").metrics["auroc"].by_fold) == 2
    assert [one.name for one in results.published] == [
        "XGBoost",
        "random forest",
        "LSTM",
        "Isolation Forest",
    ]
    for fold in found.folds:
        times = transactions.times
        assert times[fold.rows(TRAIN)].max() <= times[fold.rows(CALIBRATION)].min()
        assert times[fold.rows(CALIBRATION)].max() + 7 * DAY <= times[fold.rows(TEST)].min() + DAY


def test_cards_compromised_long_ago_are_forgotten() -> None:
    times = np.array([0.0, 9.0, 30.0, 31.0]) * DAY
    customers, labels = np.array([0, 1, 0, 1]), np.array([1, 1, 0, 0])
    windows = {
        "train_s": 20 * DAY,
        "gap_s": 2 * DAY,
        "test_s": 10 * DAY,
        "selection_s": 0.0,
        "calibration_s": 0.0,
        "drop_compromised": True,
    }
    (everyone,) = split_prequential(
        customers, times, labels, **{**windows, "drop_compromised": False}
    )
    assert everyone.test.tolist() == [2, 3]
    (recent,) = split_prequential(customers, times, labels, memory_s=12 * DAY, **windows)
    assert recent.test.tolist() == [2]
    with pytest.raises(DataError, match="test has no rows"):
        split_prequential(customers, times, labels, **windows)


def test_settings_survive_json() -> None:
    settings = replace(QUICK, protocol=SplitProtocol("handbook", n_folds=3))
    assert StudySettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    with pytest.raises(ConfigError, match="not settings of a study"):
        StudySettings.from_dict({"states": [1]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: replace(QUICK, tiers=("deep",)), "tiers has 'deep'"),
        (lambda: replace(QUICK, tiers=()), "at least one tier"),
        (
            lambda: replace(QUICK, tiers=("variational", "variational")),
            "tiers lists something twice",
        ),
        (lambda: replace(QUICK, seeds=(3, 3)), "seeds that differ"),
        (lambda: replace(QUICK, calibrations=("hope",)), "calibrations has 'hope'"),
        (lambda: replace(QUICK, states="many"), "states is 'many'"),
        (lambda: replace(QUICK, n_resamples=0), "n_resamples is 0"),
        (lambda: SplitProtocol("bootstrap"), "the protocol is 'bootstrap'"),
        (lambda: SplitProtocol("handbook", train_days=10), "train_days is 10"),
        (lambda: SplitProtocol("handbook", n_folds=0), "n_folds is 0"),
    ],
)
def test_bad_settings_are_refused(change: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        change()


def test_a_folder_of_another_study_is_left_alone(
    studied: tuple[Study, Results, Path], tmp_path: Path
) -> None:
    found, _, folder = studied
    with pytest.raises(ConfigError, match="holds another study: other settings"):
        run_study(found.transactions, replace(QUICK, max_iter=11), folder, QUIET)
    with pytest.raises(ConfigError, match="other data"):
        run_study(read(make_portfolio(100), SCHEMA), QUICK, folder, QUIET)
    for n, content in enumerate(("[]", "{")):
        (tmp_path / f"odd{n}").mkdir()
        (tmp_path / f"odd{n}" / "study.json").write_text(content)
        with pytest.raises(BundleError, match="Choose another folder"):
            run_study(found.transactions, QUICK, tmp_path / f"odd{n}", QUIET)
    for wrong in (
        {"include": ("nosuch",)},
        {"seeds": (2**32,)},
        {"anchored_states": 1},
        {"temperature": float("nan")},
    ):
        with pytest.raises(ConfigError):
            run_study(found.transactions, replace(QUICK, **wrong), tmp_path / "wrong", QUIET)
        assert not (tmp_path / "wrong").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(BundleError, match="holds no study"):
        run_study(found.transactions, QUICK, tmp_path / "mine", QUIET)
    with pytest.raises(DataError, match="needs labels"):
        run_study(
            read(make_portfolio(), replace(SCHEMA, label=None)), QUICK, tmp_path / "none", QUIET
        )


def test_a_damaged_fit_is_fitted_again(tmp_path: Path) -> None:
    settings = replace(
        QUICK, seeds=(1,), tiers=("variational",), baselines=("isolation-forest", "xgboost")
    )
    transactions = read(make_portfolio(), SCHEMA)
    whole = evaluate(run_study(transactions, settings, tmp_path / "run", QUIET))
    fits = tmp_path / "run" / "fits" / "fold-1-seed-1"
    (scores,) = (fits / "isolation-forest" / "scores").glob("*.safetensors")
    scores.write_bytes(scores.read_bytes()[:-3])
    (fits / "xgboost" / "model.json").write_text("{}")
    shutil.rmtree(fits / "variational" / "detector")
    shutil.rmtree(fits / "anchored" / "scores")
    shutil.copytree(fits / "xgboost" / "scores", fits / "anchored" / "scores")  # of another
    assert evaluate(run_study(transactions, settings, tmp_path / "run", QUIET)) == whole


def test_too_short_a_file_for_the_folds_is_refused() -> None:
    transactions = read(make_portfolio(), SCHEMA)
    with pytest.raises(
        DataError,
        match=r"12 test weeks after 35 days of training need 126 days of data, "
        r"and there are \d+\. Use fewer",
    ):
        SplitProtocol("handbook", n_folds=12).splits(transactions)
    with pytest.raises(DataError, match=r"a label delay of at most \d+ days, or more") as caught:
        SplitProtocol("handbook", n_folds=2, label_delay_days=120).splits(transactions)
    days = int(str(caught.value).split("at most ")[1].split()[0])
    protocol = SplitProtocol("handbook", n_folds=2, label_delay_days=days, drop_compromised=False)
    assert len(protocol.splits(transactions)) == 2
    with pytest.raises(DataError, match="label delay"):
        replace(protocol, label_delay_days=days + 1).splits(transactions)


def test_test_weeks_begin_at_midnight() -> None:
    transactions = read(make_portfolio(400).filter(pl.col("at") < 86.8 * DAY), SCHEMA)
    for split in SplitProtocol("handbook", train_days=42, n_folds=2, drop_compromised=False).splits(
        transactions
    ):
        days = np.unique(np.floor(transactions.times[split.test] / DAY))
        assert len(days) == 7


def test_results_survive_the_disk(studied: tuple[Study, Results, Path], tmp_path: Path) -> None:
    save_results(studied[1], tmp_path / "results.json")
    assert load_results(tmp_path / "results.json") == studied[1]


TINY_ENCODER: dict[str, Any] = {
    "hidden_dim": 12,
    "max_epochs": 3,
    "max_lstm_epochs": 2,
    "joint_cycles": 2,
}


@pytest.fixture(scope="module")
def neural(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Results, StudySettings, Path]:
    folder = tmp_path_factory.mktemp("run") / "neural"
    settings = replace(
        QUICK,
        tiers=("variational", "neural"),
        baselines=("xgboost", "lstm"),
        seeds=(1,),
        latent_dims=(4,),
        ablations=("joint",),
        **TINY_ENCODER,
    )
    found = run_study(read(make_portfolio(), SCHEMA), settings, folder, QUIET)
    return found, evaluate(found), settings, folder


def test_the_neural_tier_takes_part_with_its_head_beside_it(
    neural: tuple[Study, Results, StudySettings, Path],
) -> None:
    found, results, settings, folder = neural
    names = {one.name for one in results.candidates}
    expected = {
        "neural, corrected, filtered",
        "neural, anchored, corrected, filtered",
        "neural, encoder's head",
        "regime-calibrated head",
    }
    assert expected | {"LSTM", "hybrid", "variational, anchored, corrected, filtered"} <= names
    labels = found.folds[0].labels(TEST)
    for name in ("neural, encoder's head", "LSTM", "regime-calibrated head"):
        scores = found.scores(0, 1, name)[TEST]
        assert of(results, name).metrics["auroc"].value == pytest.approx(
            roc_auc_score(labels, scores)
        )
    table = next(one for one in results.regimes if one.detector == "neural")
    assert any(row.traits for row in table.rows)
    sliced = {one.candidate for one in results.slices}
    assert {
        "neural, corrected, filtered",
        "neural, encoder's head",
        "LSTM",
        "regime-calibrated head",
    } <= sliced
    assert evaluate(run_study(read(make_portfolio(), SCHEMA), settings, folder, QUIET)) == results


def test_detectors_of_the_neural_tier_share_an_encoder(
    neural: tuple[Study, Results, StudySettings, Path],
) -> None:
    fitted = neural[0].fits[0, 1]
    one, other, ranked = (
        load(fitted[key].folder / "detector")
        for key in ("neural", "neural-anchored", "head-ranker")
    )
    np.testing.assert_array_equal(one.model_.encoder_.tables, other.model_.encoder_.tables)
    assert (one.supervision, other.supervision) == ("none", "anchored")
    scored = ranked.score(neural[0].transactions).probability
    np.testing.assert_allclose(
        scored[neural[0].folds[0].rows(TEST)],
        neural[0].scores(0, 1, "regime-calibrated head")[TEST],
        rtol=1e-5,
    )


def test_what_is_told_of_the_encoder(neural: tuple[Study, Results, StudySettings, Path]) -> None:
    found, results, _, folder = neural
    model = load(found.fits[0, 1]["neural"].folder / "detector").model_
    (training,), (latents,) = results.encoder_trainings, results.latent_maps
    assert training.validation_losses == model.training_.validation_losses
    assert (training.latent_dim, training.best_epoch, len(training.train_losses)) == (
        4,
        model.training_.best_epoch,
        3,
    )
    assert len(latents.x) == len(latents.labels) == len(found.folds[0].rows(TEST))
    assert sum(latents.labels) == found.folds[0].labels(TEST).sum()
    assert (
        latents.fraud_regime
        == load(found.fits[0, 1]["neural"].folder / "detector").regimes.fraud_state
    )
    assert results.joint_training is not None
    assert [len(one.cycles) for one in results.joint_training.runs] == [3, 3, 3]
    assert (results.joint_training.n_states, results.joint_training.latent_dim) == (3, 4)
    assert (folder / "joint.json").exists()


def test_the_tiers_table_is_of_test_rows_and_filtered_beliefs(
    neural: tuple[Study, Results, StudySettings, Path],
) -> None:
    found, results, _, _ = neural
    labels = found.folds[0].labels(TEST)
    assert [row.name for row in results.tiers] == [
        "variational",
        "neural",
        "variational, anchored",
        "neural, anchored",
    ]
    assert [row.latent_dim for row in results.tiers] == [None, 4, None, 4]
    for row in results.tiers:
        member = found.scores(0, 1, f"{row.name}, raw, filtered")[TEST]
        rate = np.average(labels, weights=member)
        assert row.occupancy == pytest.approx(member.mean())
        assert row.fraud_rate == pytest.approx(rate)
        assert row.enrichment == pytest.approx(rate / labels.mean())
        assert row.fraud_captured == pytest.approx(member[labels == 1].sum() / labels.sum())
        assert row.enrichment_interval is not None
        assert row.enrichment_interval[0] < row.enrichment < row.enrichment_interval[1]


def test_a_width_is_chosen_with_the_number_of_states(tmp_path: Path) -> None:
    settings = replace(
        QUICK,
        tiers=("neural",),
        baselines=(),
        seeds=(1,),
        states="auto",
        orders=(2, 3),
        n_stability=1,
        latent_dims=(3, 5),
        **TINY_ENCODER,
    )
    found = run_study(read(make_portfolio(), SCHEMA), settings, tmp_path / "run", QUIET)
    assert (
        list(found.states.sweeps)
        == list(found.states.stabilities)
        == ["neural, 3 latents", "neural, 5 latents"]
    )
    chosen = choose_width(
        {width: found.states.sweeps[f"neural, {width} latents"].choose() for width in (3, 5)}
    )
    assert found.states.latent_dim == (3 if chosen is None else chosen)
    results = evaluate(found)
    assert {row.latent_dim for row in results.tiers} == {found.states.latent_dim}
    assert [one.tier for one in results.selections] == ["neural, 3 latents", "neural, 5 latents"]
    assert {one.criterion for one in results.selections} == {"held_out"}
    assert {one.used for one in results.selections} == {found.states.n_states["neural"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"latent_dims": (4, 4)}, "latent_dims"),
        ({"latent_dims": ()}, "latent_dims"),
        ({"latent_dims": (4, 8), "states": 3}, "chosen together"),
        ({"ablations": ("joint",), "tiers": ("variational",)}, "of the neural tier"),
        ({"ablations": ("none",)}, "ablations"),
        ({"joint_cycles": 0}, "joint_cycles"),
    ],
)
def test_neural_settings_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(StudySettings(tiers=("neural",)), **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dropout_draws": 1}, "dropout_draws"),
        ({"latent_dims": (4, 0), "states": "auto"}, "latent_dim"),
        ({"max_epochs": 0}, "max_epochs"),
        ({"states": 1, "ablations": ("joint",)}, "2 states or more"),
    ],
)
def test_bad_options_of_the_encoder_are_refused_before_a_folder_is_begun(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run_study(
            read(make_portfolio(), SCHEMA),
            replace(QUICK, tiers=("variational", "neural"), **changes),
            tmp_path / "run",
            QUIET,
        )
    assert not (tmp_path / "run").exists()


def test_a_fit_part_that_cannot_train_an_encoder_is_refused_before_a_folder_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_portfolio()
    transactions = read(made, SCHEMA)
    split = SplitProtocol().splits(transactions)[0]
    with_fraud = np.unique(
        transactions.customer_codes[split.fit][np.asarray(transactions.labels)[split.fit] == 1]
    )
    cleared = transactions.keys[with_fraud[1:]]  # one customer with fraud is left in the fit part
    is_cleared = pl.col("who").cast(pl.String).is_in(cleared.astype(str).tolist())
    fewer = made.with_columns(fraud=pl.when(is_cleared).then(0).otherwise(pl.col("fraud")))
    monkeypatch.setattr(SplitProtocol, "splits", lambda *_: [split])
    with pytest.raises(DataError, match="1 have fraud"):
        run_study(
            read(fewer, SCHEMA),
            replace(QUICK, tiers=("variational", "neural")),
            tmp_path / "run",
            QUIET,
        )
    assert not (tmp_path / "run").exists()


def test_a_damaged_fit_is_made_again(
    neural: tuple[Study, Results, StudySettings, Path], tmp_path: Path
) -> None:
    _, results, settings, folder = neural
    shutil.copytree(folder, tmp_path / "run")
    fits = tmp_path / "run" / "fits" / "fold-1-seed-1"
    (fits / "neural" / "detector" / "manifest.json").write_text("{")
    (fits / "lstm" / "scores" / "manifest.json").write_text("nothing")
    (tmp_path / "run" / "joint.json").write_text("[]")
    again = evaluate(run_study(read(make_portfolio(), SCHEMA), settings, tmp_path / "run", QUIET))
    assert again == results


def test_anchored_states_are_those_of_every_anchored_detector(tmp_path: Path) -> None:
    settings = replace(
        QUICK,
        tiers=("variational", "neural"),
        baselines=(),
        seeds=(1,),
        latent_dims=(4,),
        anchored_states=5,
        n_fraud_states=2,
        **TINY_ENCODER,
    )
    results = evaluate(run_study(read(make_portfolio(), SCHEMA), settings, tmp_path / "run", QUIET))
    assert {row.name: row.n_states for row in results.tiers} == {
        "variational": 3,
        "neural": 3,
        "variational, anchored": 5,
        "neural, anchored": 5,
    }
