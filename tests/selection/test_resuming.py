"""Stopped sweeps resume to the same result, and two sweeps never mix."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.selection.portfolio import (
    ORDERS,
    assert_same,
    baum_welch,
    changed,
    frame,
    portfolio,
    reference,
    swept,
    variational,
)
from turncoat import BaumWelchHMM, BundleError, ConfigError, DataError, Prior, VariationalHMM
from turncoat.features import Features
from turncoat.scoring import Anchoring
from turncoat.selection.orders import ORDER_FORMAT
from turncoat.storage import BundleFormat


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The orders fitted from now on; a negative one interrupts the sweep there."""
    reference()  # made before, so that its fits are not among them
    seen: list[int] = []
    for kind in (BaumWelchHMM, VariationalHMM):

        def recorded(self, panel, original=kind.fit, **options):
            if -self.n_states in seen:
                raise KeyboardInterrupt
            seen.append(self.n_states)
            return original(self, panel, **options)

        monkeypatch.setattr(kind, "fit", recorded)
    return seen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished sweep."""
    swept(folder=tmp_path / "sweep")
    return tmp_path / "sweep"


@pytest.mark.parametrize("tier", ["baum-welch", "variational"])
def test_a_stopped_sweep_goes_on_to_the_same_result(tier, tmp_path, fits):
    model = baum_welch() if tier == "baum-welch" else variational(prior=Prior(sticky=9.0))
    whole = swept(model=model)
    fits[:] = [-4]
    with pytest.raises(KeyboardInterrupt):
        swept(model=model, folder=tmp_path / "sweep")
    assert fits == [-4, 2, 3]
    fits.clear()
    resumed = swept(model=model, folder=tmp_path / "sweep")
    assert fits == [4]
    assert_same(resumed, whole)
    fits.clear()
    assert_same(swept(model=model, folder=tmp_path / "sweep"), whole)
    assert fits == []


def test_the_stop_says_what_is_kept(tmp_path, fits, capsys):
    fits[:] = [-3]
    with pytest.raises(KeyboardInterrupt):
        swept(folder=tmp_path / "sweep", progress=True)
    assert (
        f"stopped after 1 of 3 orders: kept in {tmp_path / 'sweep'}"
        in capsys.readouterr().err.replace("\n", "")
    )
    with pytest.raises(KeyboardInterrupt):
        swept(progress=True)
    assert "nothing is kept, because no folder was given" in capsys.readouterr().err
    fits.clear()
    swept(folder=tmp_path / "sweep", progress=True)
    assert "K = 2 found on disk (1 of 3" in capsys.readouterr().err


def test_stopped_while_saving_leaves_no_half_order(tmp_path, monkeypatch, fits):
    save = BundleFormat.save

    def interrupted(self, place, content, arrays):
        if self is ORDER_FORMAT and fits == [2, 3]:
            raise KeyboardInterrupt
        save(self, place, content, arrays)

    monkeypatch.setattr(BundleFormat, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swept(folder=tmp_path / "sweep")
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == [
        "order-02",
        "sweep.json",
    ]
    fits.clear()
    assert_same(swept(folder=tmp_path / "sweep"), reference())
    assert fits == [3, 4]


def test_orders_may_be_added_later(folder, fits):
    assert list(swept(folder=folder, orders=(4, 5)).fits) == [4, 5]
    assert fits == [5]


def test_threads_and_progress_do_not_make_another_sweep(folder, fits):
    found = swept(folder=folder, model=baum_welch(n_threads=1, progress=False), progress=False)
    assert fits == []
    assert {(model.n_threads, model.progress) for model in found.models.values()} == {(1, False)}


def test_other_test_rows_do_not_make_another_sweep(folder, fits):
    _, split = portfolio()
    assert_same(swept(*changed(split.test, paid=pl.col("paid") * 2), folder=folder), reference())
    assert fits == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": baum_welch(tol=0.5)}, r"model tol was 1e-05 and is 0\.5\. Choose"),
        (
            {"model": variational()},
            "model was 'BaumWelchHMM' and is 'VariationalHMM', .*model variance_floor was",
        ),
        ({"features": Features(min_count=6)}, "features min_count was 5 and is 6"),
        (
            {"features": Features("processed", min_count=5)},
            "other fit rows, other selection rows, features kind was 'engineered'",
        ),
        ({"anchoring": Anchoring()}, "anchoring was None and is {'n_fraud_states': 1"),
        ({"proxy": "amount_z"}, "proxy was 'paid' and is 'amount_z'"),
    ],
)
def test_other_settings_are_refused(folder, fits, settings, message):
    with pytest.raises(ConfigError, match=f"holds orders of another sweep: .*{message}"):
        swept(folder=folder, **settings)
    assert fits == []


@pytest.mark.parametrize(
    ("part", "column", "message"),
    [
        ("fit", "age", "other fit rows"),
        ("selection", "age", "other selection rows"),
        ("selection", "fraud", "other selection rows"),
    ],
)
def test_other_data_are_refused(folder, fits, part, column, message):
    _, split = portfolio()
    value = 1 - pl.col("fraud") if column == "fraud" else pl.col("age") + pl.col("id") % 5
    with pytest.raises(ConfigError, match=f"holds orders of another sweep: {message}"):
        swept(*changed(split.parts[part], **{column: value}), folder=folder)
    assert fits == []


@pytest.mark.parametrize("transitions", ["per-row", "continuous"])
def test_other_times_make_another_sweep_where_transitions_depend_on_them(transitions, tmp_path):
    _, split = portfolio()
    options = {"model": baum_welch(transitions=transitions), "features": Features("processed")}
    options |= {"folder": tmp_path / "sweep", "orders": (2,)}
    first, others = swept(**options), changed(split.fit, at=pl.col("at") / 2)
    if transitions == "continuous":
        with pytest.raises(ConfigError, match="holds orders of another sweep: other fit rows"):
            swept(*others, **options)
        with pytest.raises(DataError, match="not the transactions and the split of the sweep"):
            first.compute_stability(*others, n_resamples=2)
        choice = first.compute_stability(*portfolio(), n_resamples=1).choices[0]
        assert [step.n_states for step in choice.trail] == [2]
    else:
        assert_same(swept(*others, **options), first)


def test_another_version_is_refused(folder, monkeypatch):
    monkeypatch.setattr("turncoat.__version__", "99.0")
    with pytest.raises(ConfigError, match=r"Turncoat was '.*' and is '99\.0'"):
        swept(folder=folder)


def test_a_folder_of_something_else_is_refused(tmp_path, fits):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BundleError, match=r"is not empty and sweep\.json in it cannot be read"):
        swept(folder=tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(BundleError, match="Choose another folder"):
            swept(folder=tmp_path)
    with pytest.raises(BundleError, match="is not empty"):
        swept(folder=tmp_path / "notes.txt")
    assert fits == []
    assert (tmp_path / "notes.txt").read_text() == "mine"


def truncated_model(order: Path) -> None:
    file = next((order / "model").glob("params-*"))
    file.write_bytes(file.read_bytes()[:-8])


def edited_figures(order: Path) -> None:
    file = order / "figures" / "manifest.json"
    content = json.loads(file.read_text())
    content["criteria"]["bic"] -= 1e6
    file.write_text(json.dumps(content))


def figures_of_another_format(order: Path) -> None:
    BundleFormat("order", version=1).save(order / "figures", {"criteria": {}}, {"x": np.zeros(1)})


def of_another_order(order: Path) -> None:
    shutil.rmtree(order)
    shutil.copytree(order.parent / "order-02", order)


@pytest.mark.parametrize(
    "damage",
    [
        truncated_model,
        edited_figures,
        figures_of_another_format,
        of_another_order,
        lambda order: shutil.rmtree(order / "model"),
        lambda order: shutil.rmtree(order / "figures"),
        lambda order: (order / "figures" / "manifest.json").write_text("{"),
    ],
)
def test_a_damaged_order_is_fitted_again(folder, fits, capsys, damage: Callable[[Path], None]):
    damage(folder / "order-03")
    assert_same(swept(folder=folder, progress=None), reference())
    assert fits == [3]
    fits.clear()
    assert_same(swept(folder=folder), reference())
    assert fits == []
    damage(folder / "order-03")
    swept(folder=folder, progress=True)
    assert "K = 3 was damaged and is fitted again (2 of 3" in capsys.readouterr().err


def test_what_is_on_disk(folder):
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"order-{k:02d}" for k in ORDERS),
        "sweep.json",
    ]
    identity = json.loads((folder / "sweep.json").read_text())
    assert identity == reference().identity
    assert not {"model n_states", "model n_threads", "model progress", "model init"} & set(identity)
    assert frame()["who"][0] not in (folder / "sweep.json").read_text()
