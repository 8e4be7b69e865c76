"""Every tier works with scikit-learn: tables or panels, scores, folds by group, pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.reference.bridge import arrays_of
from turncoat import BaumWelchHMM, ConfigError, DataError, NeuralVariationalHMM, Panel
from turncoat.models.neural.encoder import Encoder

from .test_estimators import QUICK, every_tier, make_panel

RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(5, 40, 60)
CUSTOMERS = np.repeat([f"customer {u}" for u in range(60)], LENGTHS)
STATES = np.repeat(RNG.integers(0, 3, LENGTHS.sum() // 5 + 1), 5)[: LENGTHS.sum()]
CENTRES = np.array([[0, 0], [5, 0], [0, 5]])
TABLE = (RNG.normal(size=(len(STATES), 2)) + CENTRES[STATES]) * [1e-4, 1e3]
PANEL = Panel.from_arrays(TABLE, lengths=LENGTHS)
HOUSEHOLDS = np.arange(60) // 2
GRID = {"n_states": [1, 3]}


@pytest.fixture
def routing() -> Any:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def assert_same_params(first: Any, second: Any) -> None:
    for found, expected in zip(arrays_of(first.params_), arrays_of(second.params_), strict=True):
        np.testing.assert_array_equal(found, expected)


@every_tier
def test_a_table_is_fitted_like_its_panel(tier: Any) -> None:
    model = tier(3, **QUICK).fit(PANEL)
    for rows, how in (
        (TABLE, {"lengths": LENGTHS}),
        (TABLE, {"groups": CUSTOMERS}),
        (TABLE.tolist(), {"lengths": LENGTHS.tolist()}),
        (pd.DataFrame(TABLE, columns=["a", "b"]), {"groups": pd.Series(CUSTOMERS)}),
        (list(PANEL), {}),
        ([PANEL[:20], PANEL[20:]], {}),
        (PANEL, {"groups": HOUSEHOLDS}),
    ):
        assert_same_params(tier(3, **QUICK).fit(rows, **how), model)
        np.testing.assert_array_equal(model.predict(rows, **how), model.decode(PANEL))
        for mode, expected in (
            ("filtered", model.filter(PANEL)),
            ("smoothed", model.smooth(PANEL)),
        ):
            found = model.predict_proba(rows, mode=mode, **how)
            np.testing.assert_array_equal(found, expected.probs)
        total = model.log_likelihood(PANEL).sum()
        assert model.score(rows, **how) == pytest.approx(total / len(TABLE), rel=1e-12)
    alone = tier(3, **QUICK).fit(TABLE)  # one sequence, as in hmmlearn
    assert_same_params(alone, tier(3, **QUICK).fit(Panel.from_arrays(TABLE)))


@every_tier
def test_probabilities_need_a_mode(tier: Any) -> None:
    model = tier(2, **QUICK).fit(PANEL)
    with pytest.raises(TypeError, match="mode"):
        model.predict_proba(PANEL)
    for mode in (None, "viterbi", "Filtered"):
        with pytest.raises(ConfigError, match=r"'filtered' \(up to the row\) or 'smoothed'"):
            model.predict_proba(PANEL, mode=mode)


@every_tier
def test_filtered_probabilities_do_not_look_ahead(tier: Any) -> None:
    model = tier(3, **QUICK).fit(PANEL)
    changed = TABLE.copy()
    changed[1:] = changed[:0:-1]
    one = {"lengths": [len(TABLE)]}
    first, second = (model.predict_proba(t, mode="filtered", **one)[0] for t in (TABLE, changed))
    np.testing.assert_array_equal(first, second)


@every_tier
def test_folds_of_a_panel_hold_whole_sequences(tier: Any) -> None:
    """Without any switch: rows of a panel cannot be torn apart."""
    model, folds = tier(2, **QUICK), GroupKFold(3)
    scores = cross_val_score(model, PANEL, groups=HOUSEHOLDS, cv=folds)
    expected = [
        tier(2, **QUICK).fit(PANEL[fit]).score(PANEL[held_out])
        for fit, held_out in folds.split(PANEL, groups=HOUSEHOLDS)
    ]
    np.testing.assert_array_equal(scores, expected)
    search = GridSearchCV(model, GRID, cv=folds).fit(PANEL, groups=HOUSEHOLDS)
    assert search.best_params_ == {"n_states": 3}
    assert_same_params(search.best_estimator_, tier(3, **QUICK).fit(PANEL))
    assert search.score(PANEL) == search.best_estimator_.score(PANEL)


@every_tier
def test_mixed_columns_are_searched_as_panels(tier: Any) -> None:
    panel = make_panel()
    scores = cross_val_score(tier(2, transitions="continuous", **QUICK), panel, cv=3)
    assert np.isfinite(scores).all()


@every_tier
@pytest.mark.usefixtures("routing")
def test_folds_of_a_table_are_told_by_groups(tier: Any) -> None:
    model, folds = tier(2, **QUICK), GroupKFold(3)
    search = GridSearchCV(model, GRID, cv=folds).fit(TABLE, groups=CUSTOMERS)
    assert search.best_params_ == {"n_states": 3}
    assert_same_params(search.best_estimator_, tier(3, **QUICK).fit(PANEL))
    scores = cross_val_score(model, TABLE, cv=folds, params={"groups": CUSTOMERS})
    expected = [
        tier(2, **QUICK)
        .fit(TABLE[fit], groups=CUSTOMERS[fit])
        .score(TABLE[held_out], groups=CUSTOMERS[held_out])
        for fit, held_out in folds.split(TABLE, groups=CUSTOMERS)
    ]
    np.testing.assert_array_equal(scores, expected)
    weighing = model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    weights = np.repeat(np.arange(60) % 3 + 1.0, LENGTHS)
    params = {"groups": CUSTOMERS, "sample_weight": weights}
    weighted = cross_val_score(weighing, TABLE, cv=folds, params=params)
    assert (weighted != scores).all()
    with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
        cross_val_score(tier(2, **QUICK), TABLE, cv=folds, params=params)
    on_panel = GridSearchCV(tier(2, **QUICK), GRID, cv=folds).fit(PANEL, groups=HOUSEHOLDS)
    assert on_panel.best_params_ == {"n_states": 3}


@every_tier
def test_a_pipeline_with_a_scaler(tier: Any) -> None:
    name = tier.__name__.lower()
    pipeline = make_pipeline(StandardScaler(), tier(3, **QUICK))
    pipeline.fit(TABLE, **{f"{name}__lengths": LENGTHS})
    scaled = StandardScaler().fit_transform(TABLE)
    model = tier(3, **QUICK).fit(scaled, lengths=LENGTHS)
    assert_same_params(pipeline[-1], model)
    path = model.predict(scaled, lengths=LENGTHS)
    np.testing.assert_array_equal(pipeline.predict(TABLE, lengths=LENGTHS), path)
    np.testing.assert_array_equal(
        pipeline.predict_proba(TABLE, mode="filtered", groups=CUSTOMERS),
        model.predict_proba(scaled, mode="filtered", lengths=LENGTHS),
    )
    with sklearn.config_context(enable_metadata_routing=True):
        grid = {f"{name}__n_states": [1, 3]}
        search = GridSearchCV(pipeline, grid, cv=GroupKFold(3)).fit(TABLE, groups=CUSTOMERS)
        assert_same_params(search.best_estimator_[-1], model)
        expected = model.score(scaled, lengths=LENGTHS)
        assert search.score(TABLE, groups=CUSTOMERS) == pytest.approx(expected, rel=1e-12)
        routed = make_pipeline(StandardScaler(), tier(3, **QUICK)).fit(TABLE, lengths=LENGTHS)
        assert_same_params(routed[-1], model)
        probs = routed.predict_proba(TABLE, mode="smoothed", lengths=LENGTHS)
        smoothed = model.predict_proba(scaled, mode="smoothed", lengths=LENGTHS)
        np.testing.assert_array_equal(probs, smoothed)


@pytest.mark.filterwarnings("ignore::turncoat.EmptyStateWarning")
def test_the_neural_tier_reads_labels_of_a_table_from_y() -> None:
    labels = (STATES == 2).astype(int)
    encoder = Encoder(latent_dim=2, hidden_dim=4, max_epochs=2)
    options: dict[str, Any] = {"encoder": encoder, "n_threads": 1, **QUICK}
    table = NeuralVariationalHMM(2, **options).fit(TABLE, labels, lengths=LENGTHS)
    labelled = Panel.from_arrays(TABLE, lengths=LENGTHS, labels=labels)
    panel = NeuralVariationalHMM(2, **options).fit(labelled)
    assert_same_params(table, panel)
    np.testing.assert_array_equal(table.predict(TABLE, lengths=LENGTHS), panel.decode(labelled))
    weights = np.arange(60) % 2
    given = {**options, "encoder": panel.encoder_}
    weighted = NeuralVariationalHMM(2, **given).fit(PANEL, sample_weight=weights)
    assert_same_params(weighted, NeuralVariationalHMM(2, **given).fit(PANEL[weights == 1]))


BAD_ROWS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one column": (TABLE[:, 0], {}, "must be a table"),
    "text": ([["a"], ["b"]], {}, "must hold numbers"),
    "both": (TABLE, {"lengths": LENGTHS, "groups": CUSTOMERS}, "give one of them"),
    "short lengths": (TABLE, {"lengths": [3]}, "lengths add up to 3"),
    "few keys": (TABLE, {"groups": CUSTOMERS[:5]}, "one key per row"),
    "scattered": (TABLE, {"groups": np.arange(len(TABLE)) % 7}, "appears again after"),
    "lengths of a panel": (PANEL, {"lengths": LENGTHS}, "has its own sequences"),
    "other columns": ([PANEL[:5], Panel.from_arrays(TABLE[:, :1])], {}, "knows 2 continuous"),
    "some with times": (
        [PANEL[:5], Panel.from_arrays(TABLE, times=np.arange(len(TABLE)))],
        {},
        "panel 1: all panels must have `times`, or none",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_named(name: str) -> None:
    rows, how, message = BAD_ROWS[name]
    with pytest.raises(DataError, match=message):
        BaumWelchHMM(2).fit(rows, **how)
