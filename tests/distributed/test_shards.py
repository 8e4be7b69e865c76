"""A table as parts by customer: nothing is lost, split, changed or left half written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from turncoat import BundleError, ConfigError, DataError
from turncoat.data import Join, Schema, read
from turncoat.data.csv_files import CsvFormat
from turncoat.distributed import load_shards, shards, write_shards
from turncoat.distributed.shards import check_shard
from turncoat.features import Features

SCHEMA = Schema(
    customer=("card", "place"),
    time="at",
    continuous=("amount", "age"),
    categorical=("kind",),
    label="fraud",
    id="number",
)


def make_frame(n_rows: int = 600) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    place = np.where(rng.random(n_rows) < 0.2, None, rng.integers(0, 3, n_rows).astype(str))
    return pl.DataFrame(
        {
            "number": np.arange(n_rows) + 1000,
            "card": rng.integers(0, 40, n_rows),
            "place": place.tolist(),
            "at": np.sort(rng.integers(0, 10**6, n_rows)),
            "amount": rng.gamma(2.0, 20.0, n_rows).round(2),
            "age": [
                None if rng.random() < 0.1 else float(rng.integers(1, 90)) for _ in range(n_rows)
            ],
            "kind": rng.choice(["a", "b", "ü"], n_rows).tolist(),
            "fraud": rng.integers(0, 2, n_rows),
            "unused": rng.normal(size=n_rows),
        },
        schema_overrides={"place": pl.String, "age": pl.Float64},
    )


def write_german(frame: pl.DataFrame, path: Path) -> None:
    """Semicolons, decimal commas and Windows' encoding."""
    text = frame.with_columns(
        pl.col("amount", "age").cast(pl.String).str.replace(".", ",", literal=True)
    ).write_csv(separator=";")
    path.write_bytes(text.encode("windows-1252"))


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz", "german"])
def test_parts_hold_the_table(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_BUFFER_BYTES", 5000)  # many row groups
    monkeypatch.setattr("turncoat.data.sources._BATCH_ROWS", 64)
    frame, schema, path = make_frame(), SCHEMA, tmp_path / f"data.{kind}"
    if kind == "german":
        path = tmp_path / "data.csv"
        write_german(frame, path)
        form = CsvFormat(separator=";", decimal=",", encoding="windows-1252")
        schema = replace(SCHEMA, csv=form)
    elif kind == "parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, compression="gzip" if kind == "csv.gz" else "uncompressed")
    found = write_shards(path, schema, n_parts=5, out=tmp_path / "parts")
    assert found == load_shards(tmp_path / "parts")
    assert (found.n_rows, len(found.shards)) == (len(frame), 5)
    assert set(found.columns) == set(frame.columns)
    whole, parted = read(path, schema), read(tmp_path / "parts", SCHEMA)
    for name in ("times", "ids", "labels", "keys"):
        np.testing.assert_array_equal(getattr(parted, name), getattr(whole, name))
    for name in ("amount", "age", "kind"):
        np.testing.assert_array_equal(parted.column(name), whole.column(name))
    panel, other = (Features("processed").fit(one).transform(one) for one in (whole, parted))
    np.testing.assert_array_equal(panel.continuous, other.continuous)
    np.testing.assert_array_equal(panel.categorical, other.categorical)


def test_a_customer_is_in_one_part_however_written(tmp_path: Path) -> None:
    frame = make_frame()
    text = frame.with_columns(pl.col("card").cast(pl.Float64).cast(pl.String))  # "17.0"
    frame.write_parquet(tmp_path / "a.parquet")
    text.write_parquet(tmp_path / "b.parquet")
    where: dict[str, set[str]] = {}
    for name in ("a", "b"):
        folder = tmp_path / name
        for shard in write_shards(
            tmp_path / f"{name}.parquet", SCHEMA, n_parts=7, out=folder
        ).shards:
            part = read(folder / shard.file, SCHEMA)
            assert part.n_rows == shard.n_rows
            for key in part.keys:
                where.setdefault(str(key), set()).add(shard.file)
    assert len(where) == read(frame, SCHEMA).n_customers
    assert all(len(files) == 1 for files in where.values())


def test_parquet_types_stay(tmp_path: Path) -> None:
    frame = make_frame().with_columns(
        at=pl.from_epoch("at").dt.replace_time_zone("UTC"), kind=pl.col("kind").cast(pl.Categorical)
    )
    write_shards(frame, SCHEMA, n_parts=2, out=tmp_path / "parts")
    parted = pl.read_parquet(tmp_path / "parts" / "part-0000.parquet")
    assert dict(parted.schema) == dict(frame.schema)


def test_few_customers_make_fewer_parts(tmp_path: Path) -> None:
    one = make_frame().with_columns(card=pl.lit(1), place=pl.lit("x"))
    assert len(write_shards(one, SCHEMA, n_parts=9, out=tmp_path / "parts").shards) == 1


def test_a_failure_leaves_the_earlier_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, folder = make_frame(), tmp_path / "parts"
    before = write_shards(frame, SCHEMA, n_parts=2, out=folder)
    with pytest.raises(BundleError, match="--overwrite"):
        write_shards(frame, SCHEMA, n_parts=3, out=folder)
    nobody = frame.with_columns(card=None, place=None)
    with pytest.raises(DataError, match=r"'card', row 1: the customer is missing"):
        write_shards(nobody, SCHEMA, n_parts=3, out=folder, overwrite=True)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pyarrow.parquet.ParquetWriter.write_table", fail)
        with pytest.raises(DataError, match="No space left"):
            write_shards(frame, SCHEMA, n_parts=3, out=folder, overwrite=True)
    assert load_shards(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]
    after = write_shards(folder, SCHEMA, n_parts=3, out=folder, overwrite=True)  # from itself
    assert (len(after.shards), after.n_rows) == (3, before.n_rows)


def test_what_cannot_be_sharded_is_refused(tmp_path: Path) -> None:
    frame = make_frame()
    joined = replace(SCHEMA, join=Join("second", on="number", columns=("kind",)))
    with pytest.raises(ConfigError, match="joins a second file, second; parts are made of one"):
        write_shards(frame.drop("kind"), joined, n_parts=2, out=tmp_path / "parts")
    assert write_shards(frame, joined, n_parts=2, out=tmp_path / "joined").n_rows == len(frame)
    with pytest.raises(DataError, match="lacks 'place'"):
        write_shards(frame.drop("place"), SCHEMA, n_parts=2, out=tmp_path / "parts")
    for n_parts in (0, 10**6):
        with pytest.raises(ConfigError, match="n_parts"):
            write_shards(frame, SCHEMA, n_parts=n_parts, out=tmp_path / "parts")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(BundleError, match="is no folder of parts"):
        write_shards(frame, SCHEMA, n_parts=2, out=tmp_path / "mine", overwrite=True)


def test_damage_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    found = write_shards(make_frame(), SCHEMA, n_parts=2, out=folder)
    (first, second), path = found.shards, folder / found.shards[0].file
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"part-0000.parquet: .* other bytes than were written"):
        check_shard(path, first)
    path.write_bytes(content[:-9])
    with pytest.raises(DataError, match="bytes instead of"):
        check_shard(path, first)
    path.unlink()
    with pytest.raises(DataError, match=r"part-0000.parquet: the part cannot be read"):
        check_shard(path, first)
    check_shard(folder / second.file, second)
    manifest = json.loads((folder / "manifest.json").read_text())
    cases = {
        "changed after": manifest | {"customer": ["other"]},
        "version 9": manifest | {"format_version": 9},
        "does not describe": {"format": "other"},
    }
    for words, changed in cases.items():
        (folder / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(BundleError, match=words):
            load_shards(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(BundleError, match="truncated"):
        load_shards(folder)
    with pytest.raises(BundleError, match="is no folder of parts"):
        load_shards(tmp_path)
