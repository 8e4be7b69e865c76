"""Files of simulated tables: all or none, and existing files are kept by default."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from turncoat.data import simulators
from turncoat.data.simulators import simulate_files, simulate_tables
from turncoat.errors import ConfigError

EARLIER = {"transactions.csv": b"earlier transactions", "truth.csv": b"earlier truth"}


@pytest.fixture
def filled(tmp_path):
    for name, content in EARLIER.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_files_hold_the_tables(tmp_path, file_format):
    out = tmp_path / "new" / "folder"
    paths = simulate_files("handbook", 500, 3, out=str(out), file_format=file_format)
    made = simulate_tables("handbook", 500, 3)
    assert paths == {name: out / f"{name}.{file_format}" for name in ("transactions", "truth")}
    assert set(out.iterdir()) == set(paths.values()), "nothing temporary is left"
    for name, table in made.items():
        if file_format == "parquet":
            assert pl.read_parquet(paths[name]).equals(table)
        else:
            assert pl.read_csv(paths[name], schema=table.schema).equals(table)


def test_times_in_csv_are_plain(tmp_path):
    paths = simulate_files("handbook", 3, out=tmp_path)
    first = paths["transactions"].read_text().splitlines()[1].split(",")[1]
    assert first == simulate_tables("handbook", 3)["transactions"]["TX_DATETIME"][0].strftime(
        "%Y-%m-%d %H:%M:%S"
    )


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    one, same, other = (
        simulate_files("handbook", 200, seed, out=tmp_path / name)
        for seed, name in ((1, "a"), (1, "b"), (2, "c"))
    )
    assert (
        one["transactions"].read_bytes()
        == same["transactions"].read_bytes()
        != other["transactions"].read_bytes()
    )


def test_existing_files_are_kept_unless_asked(filled):
    with pytest.raises(ConfigError, match=r"transactions\.csv already exists.*--overwrite"):
        simulate_files("handbook", 50, out=filled)
    assert contents(filled) == EARLIER
    (filled / "transactions.csv").unlink()
    with pytest.raises(ConfigError, match=r"truth\.csv already exists"):
        simulate_files("handbook", 50, out=filled)
    simulate_files("handbook", 50, out=filled, overwrite=True)
    assert set(contents(filled)) == set(EARLIER)
    assert pl.read_csv(filled / "truth.csv").height == 50


def test_a_full_disk_leaves_earlier_files_and_nothing_else(filled, monkeypatch):
    write = pl.DataFrame.write_csv

    def fails_on_the_truth(self, path, **options):
        write(self.head(1), path, **options)
        if Path(path).name == "truth.csv":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_csv", fails_on_the_truth)
    with pytest.raises(OSError, match="No space left"):
        simulate_files("handbook", 50, out=filled, overwrite=True)
    assert contents(filled) == EARLIER


@pytest.mark.parametrize("failing_move", [1, 2, 3, 4])
@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_a_move_that_fails_is_undone(filled, monkeypatch, failing_move, failure):
    replace = Path.replace
    moves = []

    def fails_once(self, target):
        moves.append(target)
        if len(moves) == failing_move:
            raise failure
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fails_once)
    with pytest.raises(failure):
        simulate_files("handbook", 50, out=filled, overwrite=True)
    assert contents(filled) == EARLIER


def test_a_move_that_fails_in_a_new_folder_leaves_no_file(tmp_path, monkeypatch):
    replace = Path.replace

    def fails_on_the_truth(self, target):
        if target.name == "truth.csv":
            raise OSError
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fails_on_the_truth)
    with pytest.raises(OSError):  # noqa: PT011 - only the kind is known
        simulate_files("handbook", 50, out=tmp_path)
    assert contents(tmp_path) == {}


def test_every_table_is_written_under_its_name(tmp_path, monkeypatch):
    made = {
        name: pl.DataFrame({"a": [1, 2]})
        for name in ("train_transaction", "train_identity", "truth")
    }
    monkeypatch.setattr(simulators, "simulate_tables", lambda preset, n_rows, seed: made)
    paths = simulate_files("ieee-cis", 2, out=tmp_path)
    assert (
        {path.name for path in tmp_path.iterdir()}
        == {f"{name}.csv" for name in made}
        == {path.name for path in paths.values()}
    )


def test_wrong_requests_are_refused_before_anything_is_made(filled):
    for call in (simulate_files, lambda preset, n_rows, **_: simulate_tables(preset, n_rows)):
        with pytest.raises(
            ConfigError, match="preset must be one of handbook, ieee-cis; found 'paysim'"
        ):
            call("paysim", 10, out=filled)
    with pytest.raises(ConfigError, match="file_format must be one of csv, parquet; found 'xlsx'"):
        simulate_files("handbook", 10, out=filled, file_format="xlsx")
    with pytest.raises(ConfigError, match=r"out must be a folder; found the file .*truth\.csv"):
        simulate_files("handbook", 10, out=filled / "truth.csv")
    with pytest.raises(ConfigError, match="n_rows is 0; it must be"):
        simulate_files("handbook", 0, out=filled, overwrite=True)
    assert contents(filled) == EARLIER


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "truth.csv").mkdir()
    with pytest.raises(ConfigError, match=r"truth\.csv is a folder"):
        simulate_files("handbook", 10, out=tmp_path, overwrite=True)
