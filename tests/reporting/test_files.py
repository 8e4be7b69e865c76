from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.reporting import sample_results as samples
from turncoat.errors import BundleError
from turncoat.evaluation.results import CandidateResult, Results, load_results, save_results
from turncoat.reporting import page, write_report


def _few() -> Results:
    rich = samples.rich()
    few = {
        "comparisons": rich.comparisons[:1],
        "selections": rich.selections[:1],
        "encoder_trainings": rich.encoder_trainings[:1],
        "summary": None,
    }
    return replace(rich, candidates=rich.candidates[1:3], scoring_variants=(), **few)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _table(folder: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / "tables" / f"{name}.csv").read_text())))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "a" / "new"
    assert write_report(_few(), samples.MANIFEST, folder) == folder / "report.html"
    return folder


def test_all_files_are_written_and_always_the_same(written: Path, tmp_path: Path) -> None:
    write_report(_few(), samples.MANIFEST, tmp_path)
    files = _files(written)
    assert files == _files(tmp_path)
    assert {
        "report.html",
        "tables/candidates.csv",
        "figures/differences-1.svg",
        "figures/differences-1.png",
    } <= set(files)
    assert not any(".saving-" in name for name in files)
    assert {name[:-4] for name in files if name.endswith(".svg")} == {
        name[:-4] for name in files if name.endswith(".png")
    }
    for name in (
        "candidates",
        "comparisons",
        "orders_1",
        "transitions_1",
        "latents_1",
        "losses",
        "joint_cycles",
    ):
        assert f"tables/{name}.csv" in files


def test_files_hold_full_precision(written: Path) -> None:
    results = _few()
    rows = {row["candidate"]: row for row in _table(written, "candidates")}
    for one in results.candidates:
        row = rows[one.name]
        assert (row["candidate_mode"], row["candidate_kind"]) == (one.mode, one.kind)
        assert row["family"] == "Hidden Markov models"
        _same_figures(row, one)
    comparison, row = results.comparisons[0], _table(written, "comparisons")[0]
    assert (row["first"], row["first_minus"], row["metric"]) == (
        comparison.first,
        comparison.second,
        comparison.metric,
    )
    assert float(row["difference"]) == comparison.difference
    assert (
        float(row["customer_lower"]),
        float(row["customer_upper"]),
    ) == comparison.customer_interval
    orders = _table(written, "orders_1")
    assert [float(row["bic"]) for row in orders] == [
        order.criteria["bic"] for order in results.selections[0].orders
    ]
    assert [row["enrichment"] for row in orders][-1] == ""
    transitions = _table(written, "transitions_1")
    assert [[float(row[f"to_{k}"]) for k in range(4)] for row in transitions] == [
        list(row) for row in results.regimes[0].transition_matrix
    ]
    folds = _table(written, "all_metrics")[0]
    assert (float(folds["fold_1"]), float(folds["fold_2"])) == results.candidates[0].metrics[
        "average_precision"
    ].by_fold


def _same_figures(row: dict[str, str], one: CandidateResult) -> None:
    for metric in ("average_precision", "ece_mass", "recall_at_1%"):
        figure = one.metrics[metric]
        assert figure.customer_interval is not None
        assert float(row[metric]) == figure.value
        assert (
            float(row[f"{metric}_customer_lower"]),
            float(row[f"{metric}_customer_upper"]),
        ) == figure.customer_interval
        assert float(row[f"{metric}_seed_std"]) == figure.seed_std
        assert float(row[f"{metric}_fold_2"]) == figure.by_fold[1]


def test_a_failed_run_leaves_the_earlier_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(samples.minimal(), {}, tmp_path)
    before = _files(tmp_path)

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "replace_file", full)
    with pytest.raises(BundleError, match="cannot write the report"):
        write_report(replace(samples.minimal(), preset="another"), {}, tmp_path)
    broken: Any = replace(samples.minimal(), candidates=(None,))
    with pytest.raises(AttributeError):
        write_report(broken, {}, tmp_path)
    assert _files(tmp_path) == before


@pytest.mark.parametrize("results", [samples.rich(), samples.minimal()])
def test_results_come_back_as_they_were(results: Results, tmp_path: Path) -> None:
    save_results(results, tmp_path / "results.json")
    assert load_results(tmp_path / "results.json") == results


def test_damaged_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(BundleError, match="cannot be read"):
        load_results(path)
    save_results(samples.minimal(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(BundleError, match="not results"):
        load_results(path)
    path.write_text(json.dumps({**json.loads(whole), "n_folds": "two"}))
    with pytest.raises(BundleError, match="n_folds"):
        load_results(path)
