"""Saved features load unchanged or are refused; records of other features are refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from tests.features.sample_data import (
    DAY,
    Data,
    assert_same_bits,
    handbook,
    ieee,
    replayed,
    report_label,
    shop,
)
from turncoat import BaumWelchHMM, BundleError, HMMParams, load_model, storage
from turncoat.errors import DataError, NotFittedError
from turncoat.features import Features, FeatureState, load_features

N_SCALES = 2 + 18 + 3 + 28  # columns, facts of the customer, of the transaction itself, of the shop


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    Features(min_count=3, label_delay_days=2.5).fit(shop().transactions).save(tmp_path / "features")
    return tmp_path / "features"


def params_file(folder: Path) -> Path:
    return next(folder.glob("params-*.safetensors"))


def rewrite(folder: Path, **changes: Any) -> None:
    """Edit the manifest as a careful forger would, checksum included."""
    manifest = {**json.loads((folder / "manifest.json").read_text()), **changes}
    del manifest["manifest_sha256"]
    manifest["manifest_sha256"] = storage.digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def rewrite_arrays(folder: Path, **changes: np.ndarray) -> None:
    raw = save(
        {
            name: array
            for name, array in {**load_file(params_file(folder)), **changes}.items()
            if array is not None
        }
    )
    params_file(folder).write_bytes(raw)
    rewrite(folder, params_sha256=hashlib.sha256(raw).hexdigest())


@pytest.mark.parametrize("kind", ["engineered", "processed"])
@pytest.mark.parametrize("data", [shop(), handbook(), ieee()], ids=["shop", "handbook", "ieee"])
def test_a_round_trip_changes_no_bit(tmp_path: Path, data: Data, kind: str) -> None:
    features = Features(kind, min_count=3, max_categories=40).fit(data.transactions)
    features.save(str(tmp_path / "deep" / "features"))
    loaded = load_features(tmp_path / "deep" / "features")
    assert loaded.get_params() == features.get_params()
    assert loaded.feature_names == features.feature_names
    assert loaded.state_bytes == features.state_bytes
    panel = features.transform(data.transactions)
    again = loaded.transform(data.transactions)
    assert_same_bits((panel.continuous, panel.categorical), again)
    assert again.n_categories == panel.n_categories
    assert_same_bits(replayed(loaded, data), panel)


def test_holds_only_safetensors_and_json(saved: Path) -> None:
    assert sorted(os.listdir(saved)) == ["manifest.json", params_file(saved).name]
    json.loads((saved / "manifest.json").read_text())


def test_records_live_on_when_features_are_loaded(saved: Path) -> None:
    data = shop()
    features = Features(min_count=3, label_delay_days=2.5).fit(data.transactions)
    loaded = load_features(saved)
    state = other = FeatureState()
    for k, row in enumerate(data.rows[:40]):
        state, expected = features.step(state, row | {"at": k * DAY / 4})
        other, found = (loaded if k % 2 else features).step(other, row | {"at": k * DAY / 4})
        np.testing.assert_array_equal(found.continuous, expected.continuous)
    assert other == state
    assert report_label(loaded, state, 0.0, 1) == report_label(features, state, 0.0, 1)


def test_settings_changed_after_fitting_do_not_change_what_is_saved(tmp_path: Path) -> None:
    data = shop()
    features = Features(min_count=3, label_delay_days=2.5).fit(data.transactions)
    panel = features.transform(data.transactions)
    for changes in ({"label_delay_days": 9.0}, {"kind": "processed"}):
        features.set_params(**changes)
        features.save(tmp_path / "features")
        loaded = load_features(tmp_path / "features")
        assert loaded.get_params() == features.get_params()
        assert_same_bits((panel.continuous, panel.categorical), loaded.transform(data.transactions))
        assert loaded.state_bytes == features.state_bytes


def test_a_refit_with_the_same_columns_keeps_the_records() -> None:
    """Scales and vocabularies are no part of them."""
    rows = shop().rows
    state, _ = Features().fit(shop(200, seed=9).transactions).step(None, rows[0])
    again, _ = (
        Features(min_count=1, missing_flags="none").fit(shop().transactions).step(state, rows[1])
    )
    assert again.customer is not None


def test_records_of_other_features_are_refused() -> None:
    data = shop()
    features = Features().fit(data.transactions)
    state, _ = features.step(None, next(row for row in data.rows if row["shop"] is not None))
    row = data.rows[1] | {"shop": "s1"}
    assert state.customer is not None
    (counterparty,) = state.counterparties
    assert counterparty is not None
    broken = [
        FeatureState(state.customer[:-1]),
        FeatureState(state.customer + b"\0"),
        FeatureState(b""),
        FeatureState(b"\1" + state.customer[1:]),
        FeatureState(counterparty),
        FeatureState(None, (state.customer,)),
        FeatureState(None, (counterparty[:-8],)),
        FeatureState(state.customer, (b"\1" + counterparty[1:],)),
    ]
    for wrong in broken:
        with pytest.raises(DataError, match=r"made by other features.*replaying"):
            features.step(wrong, row)
    with pytest.raises(DataError, match="made by other features"):
        features.report_label("shop", state.customer, 0.0, 1)
    delayed = Features(label_delay_days=7.5).fit(
        data.transactions
    )  # whose counterparties' records have another size
    same_size = Features(label_delay_days=6.9).fit(data.transactions)
    assert same_size.state_bytes == features.state_bytes
    for others in (delayed, same_size, Features().fit(handbook().transactions)):
        with pytest.raises(DataError, match="made by other features"):
            others.step(FeatureState(state.customer), {**row, "TX_DATETIME": 0})


@pytest.mark.parametrize(
    "change",
    [
        {"amount": "age"},
        {"amount": None},
        {"tracked": ("town", "device")},
        {"counterparties": ("kind",)},
        {"customer": ("who", "shop")},
    ],
)
def test_records_that_mean_something_else_are_refused(change: dict[str, Any]) -> None:
    """As many bytes, about another column."""
    from dataclasses import replace

    from tests.features.sample_data import SHOP, of_frame, shop_frame

    data = shop()
    features, others = (
        Features().fit(data.transactions),
        Features().fit(of_frame(shop_frame(), replace(SHOP, **change)).transactions),
    )
    state, _ = features.step(None, data.rows[0])
    assert others.state_bytes == features.state_bytes
    with pytest.raises(DataError, match="made by other features"):
        others.step(state, data.rows[1])


def test_saving_again_replaces_and_leaves_nothing_behind(saved: Path) -> None:
    Features("processed").fit(shop().transactions).save(saved)
    assert load_features(saved).kind == "processed"
    assert len(os.listdir(saved)) == 2
    assert os.listdir(saved.parent) == ["features"]


def test_a_failed_save_leaves_the_earlier_features(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def full_disk(source: str, target: Path) -> None:
        if target.name == "manifest.json":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_disk)
    other = Features("processed").fit(shop().transactions)
    with pytest.raises(BundleError, match="No space left"):
        other.save(saved)
    with pytest.raises(BundleError, match="No space left"):
        other.save(saved.parent / "another")
    assert load_features(saved).kind == "engineered"
    assert not (saved.parent / "another" / "manifest.json").exists()


def test_features_are_not_saved_before_they_are_fitted(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        Features().save(tmp_path / "features")
    assert not os.listdir(tmp_path)


def test_never_overwrites_a_folder_of_something_else(tmp_path: Path) -> None:
    features = Features().fit(shop().transactions)
    model = BaumWelchHMM.from_params(HMMParams([1.0], [[1.0]], [[0.0]], [[1.0]], ()))
    model.save(tmp_path / "model")
    with pytest.raises(BundleError, match="not a saved features"):
        features.save(tmp_path / "model")
    with pytest.raises(BundleError, match="does not describe"):
        load_features(tmp_path / "model")
    load_model(tmp_path / "model")
    features.save(tmp_path / "features")
    with pytest.raises(BundleError, match="does not describe"):
        load_model(tmp_path / "features")
    with pytest.raises(BundleError, match="cannot read"):
        load_features(tmp_path / "nowhere")


def test_every_truncation_of_either_file_is_refused(saved: Path) -> None:
    for name in ("manifest.json", params_file(saved).name):
        whole = (saved / name).read_bytes()
        for length in {0, 1, 9, len(whole) // 2, len(whole) - 1}:
            (saved / name).write_bytes(whole[:length])
            with pytest.raises(BundleError):
                load_features(saved)
        (saved / name).write_bytes(whole)
    load_features(saved)


def test_every_flipped_byte_is_refused(saved: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("manifest.json", params_file(saved).name):
        whole = (saved / name).read_bytes()
        for place in rng.choice(len(whole), 40, replace=False):
            broken = bytearray(whole)
            broken[place] ^= 0x01
            (saved / name).write_bytes(bytes(broken))
            with pytest.raises(BundleError):
                load_features(saved)
        (saved / name).write_bytes(whole)
    load_features(saved)


def test_a_newer_format_says_so(saved: Path) -> None:
    rewrite(saved, format_version=99)
    with pytest.raises(BundleError, match=r"format version 99.*Upgrade"):
        load_features(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"speed": 3}},
        {"settings": []},
        {"settings": None},
        {"schema": {}},
        {"schema": []},
        {"schema": {"customer": ["who"], "time": "at", "continuous": ["paid"]}},
        {"schema": {"customer": ["who"], "time": "at", "continuous": ["paid", "paid"]}},
        {"schema": {"customer": ["who"], "time": "at", "continuous": ["paid"], "speed": "3"}},
        {"engineered": False},
        {"label_delay_s": -1.0},
        {"label_delay_s": "soon"},
        {"label_delay_s": float("nan")},
        {"base_rate": "often"},
        {"base_rate": None},
        {"base_rate": 1.5},
        {"base_rate": float("nan")},
        {"flagged": None},
        {"flagged": ["weather"]},
        {"vocabularies": []},
        {"vocabularies": [{"frequent": []}, {"rare": []}]},
        {"vocabularies": 7},
    ],
    ids=str,
)
def test_a_manifest_that_makes_no_sense_is_refused(saved: Path, changes: dict[str, Any]) -> None:
    rewrite(saved, **changes)
    with pytest.raises(BundleError):
        load_features(saved)


@pytest.mark.parametrize(
    "left_out",
    ["settings", "schema", "engineered", "label_delay_s", "base_rate", "flagged", "vocabularies"],
)
def test_an_incomplete_manifest_is_refused(saved: Path, left_out: str) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    del manifest[left_out], manifest["manifest_sha256"]
    manifest["manifest_sha256"] = storage.digest(manifest)
    (saved / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError):
        load_features(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"spreads": np.ones(3)},
        {"units": np.ones((N_SCALES, 1))},
        {"centres": np.ones(N_SCALES, np.float32)},
        {"centres": np.full(N_SCALES, np.nan)},
        {"centres": None},
        {"colours": np.ones(N_SCALES)},
    ],
    ids=["too few", "a table", "half as wide", "not numbers", "left out", "one too many"],
)
def test_scales_that_do_not_fit_are_refused(saved: Path, changes: dict[str, Any]) -> None:
    assert load_features(saved).plan_.scales.units.shape == (N_SCALES,)
    rewrite_arrays(saved, **changes)
    if "colours" in changes:  # more than is asked for does no harm
        load_features(saved)
        return
    with pytest.raises(BundleError):
        load_features(saved)
