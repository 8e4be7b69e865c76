"""Saved detectors: the same bits in another process, or refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file

from tests.features.sample_data import shop, shop_frame
from tests.scoring.bundles import manifest_of, params_file, rewrite, rewrite_arrays
from tests.scoring.detectors import (
    QUICK,
    data_of,
    detector,
    ranked_detector,
    replay_scores,
    scored_shop,
)
from turncoat import BundleError, Detector, NotFittedError, load, load_model
from turncoat.features import load_features
from turncoat.scoring import DetectorState

CASES: dict[str, dict[str, Any]] = {
    "point": {"kind": "point"},
    "expected-log": {},
    "predictive, tempered": {"kind": "predictive", "temperature": 3.0},
    "anchored": {"supervision": "anchored", "n_fraud_states": 2, "label_noise": 0.01},
    "processed": {"features": "processed", "kind": "point"},
    "continuous": {"transitions": "continuous", "supervision": "anchored"},
    "continuous, processed": {"transitions": "continuous", "features": "processed"},
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    detector().save(tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.fixture
def saved_ranked(tmp_path: Path) -> Path:
    ranked_detector("xgboost").save(tmp_path / "ranked")
    return tmp_path / "ranked"


@pytest.mark.parametrize("case", list(CASES))
def test_a_round_trip_changes_no_bit(case: str, tmp_path: Path) -> None:
    made, data = detector(**CASES[case]), data_of("shop")
    made.save(str(tmp_path / "deep" / "bundle"))
    loaded = load(tmp_path / "deep" / "bundle")
    assert loaded.digest_ == made.digest_
    names = ("supervision", "n_fraud_states", "label_noise", "temperature")
    assert {name: getattr(loaded, name) for name in names} == {
        name: getattr(made, name) for name in names
    }
    known = np.arange(data.transactions.n_rows) % 3 - 1
    for settings in ({}, {"mode": "smoothed"}, {"kind": "raw"}, {"known_labels": known}):
        one, other = (
            made.score(data.transactions, **settings),
            loaded.score(data.transactions, **settings),
        )
        assert one.frame().equals(other.frame())
    assert loaded.calibration_.temporal_share == made.calibration_.temporal_share
    assert loaded.calibration_.in_sample.describe() == made.calibration_.in_sample.describe()
    state = other_state = DetectorState()
    for row in data.rows[:8]:
        state, score = made.score_one(DetectorState(state.customer), row)
        other_state, other_score = loaded.score_one(DetectorState(other_state.customer), row)
        assert other_score == score
        assert other_state == state
    assert loaded.live.condition(state, 1) == made.live.condition(state, 1)


def test_hundreds_of_columns_survive(tmp_path: Path) -> None:
    made, data = detector("ieee", "expected-log"), data_of("ieee")
    made.save(tmp_path / "bundle")
    loaded = load(tmp_path / "bundle")
    np.testing.assert_array_equal(
        loaded.score(data.transactions).belief, made.score(data.transactions).belief
    )
    assert loaded.score_one(None, data.rows[0]) == made.score_one(None, data.rows[0])


OTHER_PROCESS = """
import hashlib, sys
import polars as pl
from turncoat import load
from turncoat.data.reading import read
from turncoat.scoring import DetectorState
made = load(sys.argv[1])
frame = pl.read_parquet(sys.argv[2])
scores = made.score(read(frame, made.features_.plan.schema))
digest = hashlib.sha256()
for column in (scores.belief, scores.probability, scores.variance):
    digest.update(column.tobytes())
state = DetectorState()
for row in frame.to_dicts()[:20]:
    state, score = made.score_one(DetectorState(state.customer), row)
    digest.update(repr(score).encode() + (state.customer or b""))
print(digest.hexdigest())
"""


def test_another_process_finds_the_same_bits(
    saved: Path, saved_ranked: Path, tmp_path: Path
) -> None:
    frames = {saved: shop_frame(700, 3), saved_ranked: pl.DataFrame(scored_shop().rows)}
    outputs, expected = [], []
    for folder, frame in frames.items():
        frame.write_parquet(tmp_path / f"{folder.name}.parquet")
        command = [
            sys.executable,
            "-W",
            "error",
            "-c",
            OTHER_PROCESS,
            str(folder),
            str(tmp_path / f"{folder.name}.parquet"),
        ]
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert ran.returncode == 0, ran.stderr
        outputs.append(ran.stdout.strip())
        made, data = (
            (detector(), data_of("shop"))
            if folder == saved
            else (ranked_detector("xgboost"), scored_shop())
        )
        scores = made.score(data.transactions)
        digest = hashlib.sha256(
            scores.belief.tobytes() + scores.probability.tobytes() + scores.variance.tobytes()
        )
        state = DetectorState()
        for row in frame.to_dicts()[:20]:
            state, score = made.score_one(DetectorState(state.customer), row)
            digest.update(repr(score).encode() + (state.customer or b""))
        expected.append(digest.hexdigest())
    assert outputs == expected
    assert len(set(outputs)) == 2


def test_holds_only_safetensors_and_json(saved: Path, saved_ranked: Path) -> None:
    for folder in (saved, saved_ranked):
        assert sorted(os.listdir(folder)) == ["manifest.json", params_file(folder).name]
        json.loads((folder / "manifest.json").read_text())


def test_states_live_on_when_a_detector_is_loaded(saved: Path) -> None:
    made, loaded, rows = detector(), load(saved), data_of("shop").rows
    state, _ = made.score_one(None, rows[0])
    assert loaded.score_one(state, rows[1]) == made.score_one(state, rows[1])
    whole = replay_scores(loaded, data_of("shop"))
    np.testing.assert_allclose(
        [s.probability for s in whole],
        made.score(data_of("shop").transactions).probability,
        atol=2e-4,
    )


def test_a_loaded_detector_can_be_saved_and_fitted_again(saved: Path, tmp_path: Path) -> None:
    loaded = load(saved)
    loaded.save(tmp_path / "again")
    one, other = (
        load(folder).score(data_of("shop").transactions).probability
        for folder in (saved, tmp_path / "again")
    )
    np.testing.assert_array_equal(one, other)
    again = load(saved).set_params(
        model__n_states=2, **{f"model__{name}": value for name, value in QUICK.items()}
    )
    again.fit(data_of("shop").transactions)
    assert again.score(data_of("shop").transactions).belief.shape[1] == 2


def test_a_tempered_detector_can_be_fitted_again_once_loaded(tmp_path: Path) -> None:
    detector(kind="point", temperature=2.0).save(tmp_path / "hot")
    assert load(tmp_path / "hot").fit(data_of("shop").transactions).model_.temperature == 2.0


def test_an_unfitted_detector_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        Detector().save(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_saving_again_replaces_and_leaves_nothing_behind(saved: Path) -> None:
    detector(kind="point").save(saved)
    assert type(load(saved).model_).__name__ == "BaumWelchHMM"
    assert os.listdir(saved.parent) == ["bundle"]
    assert len(os.listdir(saved)) == 2


@pytest.mark.parametrize("fails_at", ["manifest.json", "params"])
def test_a_full_disk_leaves_the_earlier_detector(
    saved: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    before = load(saved).score(data_of("shop").transactions).probability
    replace = os.replace

    def full_disk(source: str, target: Path) -> None:
        if target.name.startswith(fails_at):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(BundleError, match="No space left"):
        detector(kind="point").save(saved)
    with pytest.raises(BundleError, match="No space left"):
        detector(kind="point").save(saved.parent / "new")
    monkeypatch.undo()
    np.testing.assert_array_equal(
        load(saved).score(data_of("shop").transactions).probability, before
    )
    assert not list(saved.glob(".saving*"))


def test_nothing_else_is_overwritten_or_read(saved: Path, tmp_path: Path) -> None:
    detector().model_.save(tmp_path / "model")
    detector().features_.save(tmp_path / "features")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("one")
    for folder in ("model", "features", "thesis"):
        with pytest.raises(BundleError, match="not a saved detector"):
            detector().save(tmp_path / folder)
        with pytest.raises(BundleError, match="detector"):
            load(tmp_path / folder)
    for other in (load_model, load_features):
        with pytest.raises(BundleError, match="does not describe"):
            other(saved)
    with pytest.raises(BundleError, match="not a saved detector"):
        load(tmp_path / "nowhere")
    assert (tmp_path / "thesis" / "chapter").read_text() == "one"


def test_every_truncation_of_either_file_is_refused(saved: Path) -> None:
    for name in ("manifest.json", params_file(saved).name):
        whole = (saved / name).read_bytes()
        for length in {0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1}:
            (saved / name).write_bytes(whole[:length])
            with pytest.raises(BundleError):
                load(saved)
        (saved / name).write_bytes(whole)
    load(saved)
    params_file(saved).unlink()
    with pytest.raises(BundleError, match="cannot read params"):
        load(saved)


def test_edits_without_the_checksum_are_refused(saved: Path) -> None:
    manifest = manifest_of(saved)
    manifest["temporal_share"] = 0.5
    (saved / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="changed after saving"):
        load(saved)
    detector().save(saved.parent / "other")
    raw = bytearray(params_file(saved.parent / "other").read_bytes())
    raw[-1] ^= 1
    params_file(saved.parent / "other").write_bytes(bytes(raw))
    with pytest.raises(BundleError, match="truncated or was changed"):
        load(saved.parent / "other")


@pytest.mark.parametrize("version", [0, 3, "4", None])
def test_other_versions_are_refused(saved: Path, version: Any) -> None:
    rewrite(saved, format_version=version)
    with pytest.raises(BundleError, match="format version"):
        load(saved)


NONSENSE: dict[str, Any] = {
    "no features": {"features": None},
    "features in words": {"features": "all"},
    "no model": {"model": {}},
    "a model of no kind": {
        "model": {"kind": "Oracle", "settings": {}, "n_categories": [], "fit_report": None}
    },
    "no regimes": {"regimes": {}},
    "regimes of one mode": {
        "regimes": {"filtered": {"part": "calibration", "mode": "filtered", "in_sample": False}}
    },
    "regimes in words": {"regimes": "three"},
    "regimes of nothing": {"regimes": {"filtered": None, "smoothed": None, "in_sample": None}},
    "a share in words": {"temporal_share": "high"},
    "no settings": {"settings": None},
    "unknown settings": {"settings": {"charm": 3}},
    "bad supervision": {
        "settings": {
            "supervision": "full",
            "n_fraud_states": 1,
            "label_noise": 0.0,
            "temperature": 1.0,
        }
    },
    "too many fraud states": {
        "settings": {
            "supervision": "anchored",
            "n_fraud_states": 9,
            "label_noise": 0.0,
            "temperature": 1.0,
        }
    },
    "bad noise": {
        "settings": {
            "supervision": "none",
            "n_fraud_states": 1,
            "label_noise": 2.0,
            "temperature": 1.0,
        }
    },
    "bad temperature": {
        "settings": {
            "supervision": "none",
            "n_fraud_states": 1,
            "label_noise": 0.0,
            "temperature": -1.0,
        }
    },
    "a ranker of nothing": {"ranker": {}},
    "a ranker in words": {"ranker": "mine"},
    "a list of everything": {"features": [], "model": [], "regimes": []},
}


@pytest.mark.parametrize("name", list(NONSENSE))
def test_nonsense_with_the_right_checksum_is_refused(saved: Path, name: str) -> None:
    rewrite(saved, **NONSENSE[name])
    with pytest.raises(BundleError, match="not a detector this version understands"):
        load(saved)


THREE, FOUR = np.ones(3), np.ones(4)
WRONG_ARRAYS: dict[str, dict[str, Any]] = {
    "means of other columns": {"model.location": np.zeros((3, 2))},
    "a chain of other states": {"model.transition_concentration": np.ones((4, 4))},
    "no means": {"model.location": None},
    "missing means": {"model.location": "nan"},
    "regimes of other states": {"regimes.filtered.mass": FOUR},
    "no evidence": {"regimes.smoothed.evidence": None},
    "frauds that are no number": {"in_sample.frauds": np.array([1.0, np.nan, 0.0])},
    "less than no evidence": {"regimes.filtered.evidence": -THREE},
    "more frauds than transactions": {"regimes.filtered.frauds": THREE * 1e9},
    "no transactions": {"regimes.filtered.mass": THREE * 0, "regimes.filtered.frauds": THREE * 0},
    "an array too many": {"regimes.filtered.charm": THREE},
    "scales of other columns": {"features.centres": np.zeros(2)},
    "scales that are no number": {"features.units": "nan"},
}


@pytest.mark.parametrize("name", list(WRONG_ARRAYS))
def test_arrays_that_do_not_fit_each_other_are_refused(saved: Path, name: str) -> None:
    present = load_file(params_file(saved))
    changes = {
        key: np.full_like(present[key], np.nan) if isinstance(value, str) else value
        for key, value in WRONG_ARRAYS[name].items()
    }
    rewrite_arrays(saved, changes)
    with pytest.raises(BundleError, match="not a detector this version understands"):
        load(saved)


WRONG_RANKERS: dict[str, dict[str, Any]] = {
    "no booster": {"ranker.booster": None},
    "a booster of noise": {"ranker.booster": np.arange(99, dtype=np.uint8)},
    "intercepts of other states": {"regime_rankers.filtered.intercepts": FOUR},
    "slopes of other states": {"regime_rankers.smoothed.slopes": FOUR},
    "a covariance of other states": {"regime_rankers.filtered.covariance": np.eye(8)},
    "slopes that are no number": {"regime_rankers.filtered.slopes": np.full(3, np.nan)},
}


@pytest.mark.parametrize("name", list(WRONG_RANKERS))
def test_rankers_that_do_not_fit_are_refused(saved_ranked: Path, name: str) -> None:
    rewrite_arrays(saved_ranked, WRONG_RANKERS[name])
    with pytest.raises(BundleError, match="not a detector this version understands"):
        load(saved_ranked)


def test_a_ranker_of_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    ranked_detector("column").save(tmp_path / "bundle")
    content = manifest_of(tmp_path / "bundle")["ranker"]
    rewrite(tmp_path / "bundle", ranker={**content, "column": "yours"})
    with pytest.raises(BundleError, match="yours"):
        load(tmp_path / "bundle")


def test_parts_of_two_detectors_do_not_make_one(saved: Path, tmp_path: Path) -> None:
    """Features of one bundle with the model of another."""
    detector("handbook").save(tmp_path / "other")
    rewrite(saved, features=manifest_of(tmp_path / "other")["features"])
    others = load_file(params_file(tmp_path / "other"))
    rewrite_arrays(
        saved, {name: array for name, array in others.items() if name.startswith("features.")}
    )
    with pytest.raises(BundleError, match="the model's columns are not those of the features"):
        load(saved)


def test_a_bundle_scores_files_it_has_never_seen(saved: Path) -> None:
    scores = load(saved).score(shop(300, seed=77).transactions)
    assert np.isfinite(scores.probability).all()
