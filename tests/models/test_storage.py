"""Saved models: whole or refused."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turncoat import (
    BaumWelchHMM,
    BundleError,
    HMMParams,
    Panel,
    Prior,
    VariationalHMM,
    load_model,
    storage,
)

PARAMS = HMMParams(
    [0.5, 0.5],
    [[0.9, 0.1], [0.2, 0.8]],
    [[0.0], [1.0]],
    [[1.0], [2.0]],
    ([[0.3, 0.7], [0.5, 0.5]],),
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    BaumWelchHMM.from_params(PARAMS, tol=0.25).save(tmp_path / "model")
    return tmp_path / "model"


def params_file(folder: Path) -> Path:
    return next(folder.glob("params-*.safetensors"))


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def rewrite(folder: Path, **changes: Any) -> None:
    """Edit the manifest as a careful forger would, checksum included."""
    manifest = {**manifest_of(folder), **changes}
    del manifest["manifest_sha256"]
    manifest["manifest_sha256"] = storage.digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_holds_only_safetensors_and_json(saved: Path) -> None:
    assert sorted(os.listdir(saved)) == ["manifest.json", params_file(saved).name]
    assert os.listdir(saved.parent) == ["model"]
    loaded = load_model(saved)
    assert loaded.tol == 0.25
    np.testing.assert_array_equal(loaded.params_.category_probs[0], PARAMS.category_probs[0])


def test_prior_and_emission_survive(tmp_path: Path) -> None:
    panel = Panel.from_arrays(np.random.default_rng(0).normal(size=(40, 2)), lengths=[8] * 5)
    model = VariationalHMM(
        2, prior=Prior(sticky=9.0), emission="predictive", n_restarts=1, max_iter=5
    ).fit(panel)
    model.save(str(tmp_path / "deep" / "model"))
    loaded = load_model(tmp_path / "deep" / "model")
    assert loaded.prior == Prior(sticky=9.0)
    np.testing.assert_array_equal(loaded.smooth(panel).probs, model.smooth(panel).probs)
    np.testing.assert_array_equal(loaded.step(None, [0.0, 1.0]), model.step(None, [0.0, 1.0]))


def test_saving_again_replaces_and_leaves_nothing_behind(saved: Path) -> None:
    BaumWelchHMM.from_params(PARAMS, tol=0.5).save(saved)
    assert load_model(saved).tol == 0.5
    BaumWelchHMM.from_params(PARAMS.reorder([1, 0])).save(saved)
    np.testing.assert_array_equal(load_model(saved).params_.means, [[1.0], [0.0]])
    assert os.listdir(saved.parent) == ["model"]
    assert len(os.listdir(saved)) == 2


def test_a_failed_save_leaves_the_earlier_model(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def full_disk(source: str, target: Path) -> None:
        if target.name == "manifest.json":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(BundleError, match="No space left"):
        BaumWelchHMM.from_params(PARAMS.reorder([1, 0]), tol=0.5).save(saved)
    assert load_model(saved).tol == 0.25
    with pytest.raises(BundleError, match="No space left"):
        BaumWelchHMM.from_params(PARAMS).save(saved.parent / "another")
    assert not [name for name in os.listdir(saved) if name.startswith(".")]
    assert not (saved.parent / "another" / "manifest.json").exists()


def test_an_interrupted_save_leaves_the_earlier_model(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    for folder in (saved, saved.parent / "new"):
        with pytest.raises(KeyboardInterrupt):
            BaumWelchHMM.from_params(PARAMS, tol=0.5).save(folder)
    assert load_model(saved).tol == 0.25
    assert os.listdir(saved.parent) == ["model"]
    assert len(os.listdir(saved)) == 2


def test_loading_while_another_saves_gives_one_or_the_other(saved: Path) -> None:
    models = [BaumWelchHMM.from_params(PARAMS.reorder(order)) for order in ([0, 1], [1, 0])]

    def save_often() -> None:
        for round_ in range(60):
            models[round_ % 2].save(saved)

    savers = [threading.Thread(target=save_often) for _ in range(2)]
    for saver in savers:
        saver.start()
    means = set()
    while any(saver.is_alive() for saver in savers):
        means.add(tuple(load_model(saved).params_.means[:, 0]))
    for saver in savers:
        saver.join()
    assert means <= {(0.0, 1.0), (1.0, 0.0)}
    load_model(saved)


def test_a_link_to_a_folder_is_followed_and_other_files_stay(saved: Path, tmp_path: Path) -> None:
    (saved / "notes.txt").write_text("mine")
    (tmp_path / "link").symlink_to(saved)
    BaumWelchHMM.from_params(PARAMS, tol=0.5).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load_model(saved).tol == 0.5
    assert (saved / "notes.txt").read_text() == "mine"


def test_never_overwrites_a_folder_that_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("one")
    with pytest.raises(BundleError, match="not a saved model"):
        BaumWelchHMM.from_params(PARAMS).save(tmp_path / "thesis")
    (tmp_path / "thesis" / "manifest.json").write_text('{"format": "thesis"}')
    with pytest.raises(BundleError, match="not a saved model"):
        BaumWelchHMM.from_params(PARAMS).save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter").read_text() == "one"
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match="not a saved model"):
        BaumWelchHMM.from_params(PARAMS).save(tmp_path / "file")
    with pytest.raises(BundleError, match="cannot save"):
        BaumWelchHMM.from_params(PARAMS).save(tmp_path / "file" / "below")


def test_every_truncation_of_either_file_is_refused(saved: Path) -> None:
    for name in ("manifest.json", params_file(saved).name):
        whole = (saved / name).read_bytes()
        for length in {0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1}:
            (saved / name).write_bytes(whole[:length])
            with pytest.raises(BundleError):
                load_model(saved)
        (saved / name).write_bytes(whole)
    load_model(saved)


def test_every_flipped_byte_is_refused(saved: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("manifest.json", params_file(saved).name):
        whole = (saved / name).read_bytes()
        for place in rng.choice(len(whole), 40, replace=False):
            broken = bytearray(whole)
            broken[place] ^= 0x01
            (saved / name).write_bytes(bytes(broken))
            with pytest.raises(BundleError):
                load_model(saved)
        (saved / name).write_bytes(whole)


def test_a_newer_format_says_so(saved: Path) -> None:
    rewrite(saved, format_version=3)
    with pytest.raises(BundleError, match=r"format version 3.*Upgrade"):
        load_model(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "ForestHMM"},
        {"kind": "VariationalHMM"},
        {"kind": None},
        {"settings": {"n_states": 2, "speed": 3}},
        {"settings": {"n_states": 2, "tol": "fast"}},
        {"settings": []},
        {"n_categories": [2, 2]},
        {"n_categories": 7},
        {"fit_report": {"n_iter": 3}},
        {"params_sha256": 5},
        {"params_file": "../../elsewhere"},
        {"params_file": None},
        {"n_categories": 10**400},
        {"fit_report": {"history": []}},
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(saved: Path, changes: dict[str, Any]) -> None:
    rewrite(saved, **changes)
    with pytest.raises(BundleError):
        load_model(saved)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "[]", "null", '"text"', '{"format": "other"}', "\xff\xfe"]
)
def test_other_json_is_refused(saved: Path, content: str) -> None:
    (saved / "manifest.json").write_text(content, encoding="latin-1")
    with pytest.raises(BundleError):
        load_model(saved)


def test_missing_parts_are_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not a saved model"):
        load_model(tmp_path / "nowhere")
    params_file(saved).unlink()
    with pytest.raises(BundleError, match=r"cannot read params-"):
        load_model(saved)


def test_parameters_of_the_wrong_shape_are_refused(saved: Path) -> None:
    import hashlib

    from safetensors.numpy import load_file, save

    tensors = load_file(params_file(saved))
    tensors["means"] = np.zeros((3, 1))
    raw = save(tensors)
    params_file(saved).write_bytes(raw)
    rewrite(saved, params_sha256=hashlib.sha256(raw).hexdigest())
    with pytest.raises(BundleError, match="means"):
        load_model(saved)
