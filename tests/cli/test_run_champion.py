"""The champion of a run: saved by `compare`, found by every command that takes a detector."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.evaluation.samples import SCHEMA, make_portfolio
from turncoat import load
from turncoat.cli import comparing, main
from turncoat.data import read
from turncoat.data.money import RateTable
from turncoat.data.schema_file import write_schema
from turncoat.evaluation.results import load_results
from turncoat.evaluation.summary import Costs
from turncoat.evaluation.verdict import describe_verdict
from turncoat.serving.settings import ServiceSettings

WHERE = "compare data.parquet --config turncoat.toml --tiers variational --preset quick"
QUICK = f"{WHERE} --states 3 --resamples 50"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, their schema and a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    make_portfolio().write_parquet(folder / "data.parquet")
    write_schema(SCHEMA, folder / "turncoat.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["turncoat", *QUICK.split(), "--out", "run"])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 0
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """The test's own copy; `turncoat` runs in it."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_compare_saves_the_champion_and_says_how_good_it_is(turncoat, place):
    shown = turncoat(f"{QUICK} --out run").stdout.splitlines()  # resumes: nothing is fitted
    results = load_results(place / "run" / "results.json")
    saved, fitted = (
        load(place / "run" / folder)
        for folder in ("champion", "fits/fold-1-seed-42/champion/detector")
    )
    assert saved.digest_ == fitted.digest_
    kind = results.champions[0].choice.chosen.kind
    assert saved.kind == kind
    assert shown[-1] == "run/report.html"
    assert shown[-2] == "Saved the champion to run/champion. Next: turncoat serve run"
    conclusion = " ".join(describe_verdict(results.verdict, "champion"))
    assert " ".join(shown).startswith(conclusion)
    assert 20 <= len(shown) <= 34
    assert max(map(len, shown)) <= 100
    words = (
        "Measured on ",
        "Your alert budget (",
        " highest-scored customers had ",
        "Models with ",
    )
    places = [next(n for n, line in enumerate(shown) if start in line) for start in words]
    assert places == sorted(places)


def test_costs_come_from_options_then_the_configuration(turncoat, place):
    def find_costs(options: str = "") -> Costs:
        found = json.loads(turncoat(f"{QUICK} {options} --json --out run").stdout)
        summary = load_results(place / "run" / "results.json").summary
        shown = summary.budgets[summary.shown_budget]
        assert found["alert_budget"]["net_saving"]["value"] == shown.net_saving.value
        manifest = json.loads((place / "run" / "manifest.json").read_text())
        assert manifest["costs"] == asdict(summary.costs)
        return summary.costs

    assert find_costs() == Costs()
    schema = place / "turncoat.toml"
    schema.write_text(f'{schema.read_text()}\n[costs]\nper_review = 2\ncurrency = "USD"\n')
    assert find_costs() == Costs(2.0, 0.7, "USD")
    assert find_costs("--cost-per-review 9 --recoverable-share 0.5") == Costs(9.0, 0.5, "USD")
    refused = turncoat(f"{QUICK} --recoverable-share 70 --out run", status=2).stderr
    assert "recoverable_share is 70.0; it must be a number from 0 to 1" in refused
    schema.write_text(schema.read_text().replace("per_review", "review"))
    refused = turncoat(f"{QUICK} --out run", status=2).stderr
    assert "turncoat.toml, [costs]: unknown cost 'review'" in refused


def test_costs_are_in_the_currency_that_amounts_are_converted_to(turncoat, tmp_path):
    rates = RateTable.from_table({"SEK": 1.0, "EUR": 11.2})
    converted = replace(SCHEMA, currency="money", rates=rates)
    write_schema(converted, tmp_path / "turncoat.toml")
    config = str(tmp_path / "turncoat.toml")
    assert comparing.find_costs(config, None, None, None) == Costs(currency="SEK")
    assert comparing.find_costs(config, 9.0, None, "SEK") == Costs(9.0, 0.7, "SEK")
    (tmp_path / "data.parquet").touch()
    refused = turncoat(f"{QUICK} --currency EUR --out run", status=2).stderr
    rule = "the currency of costs is EUR, that of all amounts SEK (its rate is 1). Give costs in"
    assert rule in " ".join(refused.split())


def test_a_refitted_champion_has_the_same_choices(turncoat, place):
    before = load(place / "run" / "champion")
    found = json.loads(turncoat(f"{QUICK} --refit --json --out run").stdout)["champion"]
    after = load(place / "run" / "champion")
    assert (found["out"], found["refitted"]) == ("run/champion", True)
    assert found["kind"] == before.kind == after.kind
    results = load_results(place / "run" / "results.json")
    one = results.comparisons[0]
    assert found["verdict"] == results.verdict
    assert found["differences"] == {"XGBoost": [one.difference, *one.customer_interval]}
    assert after.digest_ != before.digest_
    names = [one.features_.feature_names for one in (before, after)]
    assert names[0] == names[1]


def test_a_run_stands_for_its_champion(turncoat, place):
    for folder in ("run", "run/champion"):
        turncoat(f"score {folder} data.parquet --out {folder.replace('/', '-')}.parquet")
    by_run, by_folder = (
        pl.read_parquet(place / name) for name in ("run.parquet", "run-champion.parquet")
    )
    assert by_run.equals(by_folder)
    expected = load(place / "run" / "champion").score(read(place / "data.parquet", SCHEMA))
    np.testing.assert_array_equal(by_run["probability"], expected.probability)
    figures = json.loads(turncoat("evaluate run data.parquet --json").stdout)
    assert figures["n_rows"] == by_run.height
    told = turncoat("explain run data.parquet --customer c004 --json").stdout
    n_own = by_run.filter(pl.col("customer") == "c004").height
    assert len(json.loads(told)["explanations"]) == n_own
    counts = json.loads(turncoat("replay run data.parquet --json").stdout)
    assert counts["scored"] == by_run.height
    assert (place / "run" / "champion-beliefs.sqlite").exists()
    assert "as fitted" in turncoat("recalibrate run --list").stdout


def test_serve_a_run(turncoat, place, monkeypatch):
    served: list[ServiceSettings] = []
    monkeypatch.setattr("turncoat.serving.server.serve", served.append)
    for folder in ("run", "run/champion"):
        turncoat(f"serve {folder}")
    assert served[0] == served[1]
    assert served[0].model_path == "run/champion"
    assert served[0].store_url.endswith("/run/champion-beliefs.sqlite")
    turncoat("serve run/fits/fold-1-seed-42/anchored/detector")
    assert served[2].model_path == "run/fits/fold-1-seed-42/anchored/detector"


def test_what_is_neither_a_detector_nor_a_run_with_a_champion_is_refused(turncoat, place):
    shutil.rmtree(place / "run" / "champion")
    refused = turncoat("score run data.parquet --out scores.csv", status=4).stderr
    assert "run is a run without a champion: it is not finished, or XGBoost was not" in refused
    assert "give a detector in run/fits" in refused
    for folder in ("run/fits", "nowhere", "data.parquet"):
        refused = turncoat(f"score {folder} data.parquet --out scores.csv", status=4).stderr
        assert "is not a saved detector" in refused
    refused = turncoat(f"{QUICK} --baselines logistic --refit --out other", status=2).stderr
    assert "--refit is of the champion, and the baselines are logistic" in refused
    assert not (place / "other").exists()


def test_a_damaged_champion_is_named(turncoat, place):
    (place / "run" / "champion" / "manifest.json").write_text("{")
    refused = turncoat("score run data.parquet --out scores.csv", status=4).stderr
    assert "run/champion: manifest.json is truncated" in refused
    refused = turncoat(f"{QUICK} --out run", status=4).stderr
    assert "run/champion exists and is not a saved detector" in refused


def test_a_run_without_xgboost_has_no_champion(turncoat, place):
    found = json.loads(turncoat(f"{QUICK} --baselines logistic --json --out plain").stdout)
    assert found["champion"] is None
    assert not (place / "plain" / "champion").exists()
    shown = turncoat(f"{QUICK} --baselines logistic --out plain").stdout
    assert "turncoat serve" not in shown
