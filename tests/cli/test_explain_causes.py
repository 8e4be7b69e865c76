"""`turncoat explain` with detectors of the causes of fraud."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import polars as pl

from tests.scoring.chains import TERMINAL, chains_detector, combine, payments

SHARES = "Reasons are the causes of fraud, with their shares."
LOG_ODDS = "Reasons are the causes of fraud, with their log odds."
CAUSES = "the causes of fraud behind it:"
EXPLAIN = "explain detector data.parquet --customer 3 --last 2"


def write_data(folder: Path) -> None:
    pl.DataFrame(payments().rows).write_parquet(folder / "data.parquet")


def test_causes_have_their_shares(turncoat: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    write_data(tmp_path)
    chains_detector().save(tmp_path / "detector")
    told = turncoat(EXPLAIN).stdout
    assert SHARES in told
    shares = [int(share) for share in re.findall(r"^ +(\d+)%  ", told, re.MULTILINE)]
    assert len(shares) == 6
    assert abs(sum(shares) - 200) <= 3  # each is rounded
    assert len(re.findall(rf"{TERMINAL} \d+", told)) == 4  # in the header and in a reason
    assert told.count("× this customer's own usual (about ") == 2


def test_causes_of_a_regression_have_their_log_odds(
    turncoat: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    write_data(tmp_path)
    combine(chains_detector(), [0.7, 1.2, 0.4], -0.3).save(tmp_path / "detector")
    told = turncoat(EXPLAIN).stdout
    assert LOG_ODDS in told
    assert len(re.findall(r"^ +[+-]\d+\.\d  ", told, re.MULTILINE)) == 6


def test_causes_behind_trees_are_opened(
    turncoat: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    write_data(tmp_path)
    chains_detector("chains+trees").save(tmp_path / "detector")
    assert CAUSES not in turncoat(EXPLAIN).stdout
    told = turncoat(EXPLAIN, "--path").stdout
    assert told.count(CAUSES) == 2
    assert "Reasons add to the log odds of trees, before calibration." in told
    assert told.count("× this customer's own usual (about ") == 2
