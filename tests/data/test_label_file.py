"""Files of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.features.sample_data import SHOP
from turncoat import DataError
from turncoat.data.label_file import LabelFile, read_label_file


def write(folder: Path, suffix: str = "csv", **columns: Any) -> Path:
    path = folder / f"labels.{suffix}"
    frame = pl.DataFrame(columns)
    frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
    return path


def unpack(file: LabelFile) -> list[tuple[str, str | None, int]]:
    return list(zip(file.ids, file.customers, file.labels.tolist(), strict=True))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(("id", "label"), [("id", "fraud"), ("transaction_id", "label")])
def test_an_id_and_a_label_are_enough(tmp_path: Path, suffix: str, id: str, label: str) -> None:
    path = write(tmp_path, suffix, **{"note": ["x", "y", "z"], id: [7, 8, 9], label: [1, 0, None]})
    found = read_label_file(path, SHOP)
    assert unpack(found) == [("7", None, 1), ("8", None, 0), ("9", None, -1)]
    assert found.source == str(path)


def test_customers_are_read_if_there_is_a_column(tmp_path: Path) -> None:
    for name in ("who", "customer"):
        path = write(tmp_path, id=["007", "a"], **{name: ["c1", None]}, label=["true", "-1"])
        assert unpack(read_label_file(path, SHOP)) == [("007", "c1", 1), ("a", None, -1)]


def test_every_row_may_be_a_fraud(tmp_path: Path) -> None:
    path = write(tmp_path, id=[7, 8])
    assert unpack(read_label_file(path, SHOP, all_fraud=True)) == [("7", None, 1), ("8", None, 1)]
    with pytest.raises(DataError, match=r"no label column, which would be fraud; found id.*--all-"):
        read_label_file(path, SHOP)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"ref": [1], "label": [1]}, "no column with the transactions' ids, .* one of id, trans"),
        ({"id": [1, None], "label": [1, 1]}, "column 'id', row 2: the transaction's id is missing"),
        ({"id": [1, 2], "label": ["1", "chargeback"]}, "row 2: the label is 'chargeback'; it must"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_label_file(write(tmp_path, **columns), SHOP)
