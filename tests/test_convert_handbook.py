"""The converter of the Handbook's daily files: what it writes, and what it refuses."""

import functools
import os
import pickle
import subprocess
import sys
from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pytest
from benchmarks.convert_handbook import SCHEMA, main
from benchmarks.pickled_frames import FrameError, read_pickled_frame

DAYS = ("2018-04-01", "2018-04-02", "2018-04-03")


def build_frame(day: str, n_rows: int = 50, as_objects: bool = True) -> pd.DataFrame:
    """One day in the published form: some columns of whole numbers are objects."""
    rng = np.random.default_rng(date.fromisoformat(day).toordinal())
    seconds = np.sort(rng.integers(0, 86_400, n_rows))
    n_days = (date.fromisoformat(day) - date(2018, 4, 1)).days
    frame = pd.DataFrame(
        {
            "TRANSACTION_ID": np.arange(n_rows) + 1_000 * n_days,
            "TX_DATETIME": (np.datetime64(day) + seconds.astype("m8[s]")).astype("M8[ns]"),
            "CUSTOMER_ID": rng.integers(0, 5_000, n_rows),
            "TERMINAL_ID": rng.integers(0, 10_000, n_rows),
            "TX_AMOUNT": np.round(rng.gamma(2.0, 30.0, n_rows), 2),
            "TX_TIME_SECONDS": seconds + 86_400 * n_days,
            "TX_TIME_DAYS": n_days,
            "TX_FRAUD": (rng.random(n_rows) < 0.1).astype(int),
            "TX_FRAUD_SCENARIO": rng.integers(0, 4, n_rows),
        }
    )
    if as_objects:
        for name in ("CUSTOMER_ID", "TERMINAL_ID", "TX_TIME_SECONDS", "TX_TIME_DAYS"):
            frame[name] = frame[name].astype(object)
    frame.columns = pd.Index(list(frame.columns), dtype=object)  # as before pandas 3
    frame.index = frame.index + 7  # not a RangeIndex from 0 in the published files
    return frame


def write_days(folder, days=DAYS, protocol=4):
    folder.mkdir()
    for day in days:
        (folder / f"{day}.pkl").write_bytes(pickle.dumps(build_frame(day), protocol))
    return folder


def expected_table(days=DAYS) -> pl.DataFrame:
    frames = [build_frame(day, as_objects=False) for day in days]
    columns = {name: np.concatenate([f[name].to_numpy() for f in frames]) for name in SCHEMA}
    return pl.DataFrame(columns).with_columns(pl.col(n).cast(t) for n, t in SCHEMA.items())


class OldManager:
    """Has the state that pandas 0.25 to 1.2 gave a BlockManager."""

    def __init__(self, frame):
        blocks = [(np.asarray(b.values), b.mgr_locs.indexer) for b in frame._mgr.blocks]
        axes = [frame.columns, frame.index]
        parts = [{"values": values, "mgr_locs": places} for values, places in blocks]
        self.state = (axes, [], [], {"0.14.1": {"axes": axes, "blocks": parts}})

    def __getstate__(self):
        return self.state


class PartialBlock:
    """Pickled as pandas 1.3 pickled a block."""

    def __init__(self, block):
        self.block = block

    def __reduce__(self):
        build = functools.partial(OldBlock, ndim=2)
        return build, (self.block.values, self.block.mgr_locs.indexer)


class OldBlock:
    """Only its name is written."""


class PartialManager:
    """Pickled as pandas 1.3 pickled a BlockManager."""

    def __init__(self, frame):
        blocks = tuple(map(PartialBlock, frame._mgr.blocks))
        self.arguments = blocks, [frame.columns, frame.index]

    def __reduce__(self):
        return OldManager, self.arguments


class OldFrame:
    """Has the state of a frame: `_data` in pandas 0.25, then `_mgr`."""

    def __init__(self, attribute, manager):
        vars(self).update({attribute: manager, "_typ": "dataframe", "_metadata": []})


def pickle_as_before(frame: OldFrame) -> bytes:
    """Protocol 2 writes names as text, so they can be exchanged for those of old versions."""
    written, here = pickle.dumps(frame, protocol=2), __name__.encode()
    for ours, theirs in (
        (here + b"\nOldManager", b"pandas.core.internals.managers\nBlockManager"),
        (here + b"\nOldFrame", b"pandas.core.frame\nDataFrame"),
        (here + b"\nOldBlock", b"pandas.core.internals.blocks\nnew_block"),
        (b"numpy._core.multiarray\n_reconstruct", b"numpy.core.multiarray\n_reconstruct"),
        (b"pandas\nIndex", b"pandas.core.indexes.base\nIndex"),
        (b"pandas\nRangeIndex", b"pandas.core.indexes.range\nRangeIndex"),
        (b"pandas.arrays\nDatetimeArray", b"pandas.core.arrays.datetimes\nDatetimeArray"),
    ):
        written = written.replace(b"c" + ours + b"\n", b"c" + theirs + b"\n")
    assert here not in written
    assert b"numpy._core" not in written
    return written


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_daily_files_become_one_table(tmp_path, protocol):
    folder, out = write_days(tmp_path / "days", protocol=protocol), tmp_path / "new" / "out.parquet"
    assert main([str(folder), str(out)]) == 0
    table = pl.read_parquet(out)
    assert table.schema == pl.Schema(SCHEMA)
    assert table.equals(expected_table())
    assert [path.name for path in out.parent.iterdir()] == ["out.parquet"]


@pytest.mark.parametrize(
    ("attribute", "manager"),
    [("_data", OldManager), ("_mgr", OldManager), ("_mgr", PartialManager)],
    ids=["0.25", "1.2", "1.3"],
)
def test_frames_of_old_pandas_are_read(tmp_path, attribute, manager):
    frame = build_frame(DAYS[0])
    written = pickle_as_before(OldFrame(attribute, manager(frame)))
    (tmp_path / "2018-04-01.pkl").write_bytes(written)
    columns = read_pickled_frame(tmp_path / "2018-04-01.pkl")
    for name in frame:
        assert columns[name].tolist() == frame[name].to_numpy().tolist(), name
    assert main([str(tmp_path), str(tmp_path / "out.parquet")]) == 0
    assert pl.read_parquet(tmp_path / "out.parquet").equals(expected_table(DAYS[:1]))


def test_days_are_chosen(tmp_path):
    folder, out = write_days(tmp_path / "days"), tmp_path / "out.parquet"
    (folder / "notes.pkl").write_bytes(b"something else")
    arguments = ["--from", "2018-04-02", "--until", "2018-04-03"]
    assert main([str(folder), str(out), *arguments]) == 0
    assert pl.read_parquet(out).equals(expected_table(DAYS[1:]))


class Malicious:
    def __init__(self, function, *arguments):
        self.parts = function, arguments

    def __reduce__(self):
        return self.parts


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_calls_something_is_refused_unrun(tmp_path, capsys, protocol):
    mark = tmp_path / "was_run"
    folder = write_days(tmp_path / "days")
    bad = folder / "2018-04-02.pkl"
    bad.write_bytes(pickle.dumps(Malicious(os.system, f"touch {mark}"), protocol))
    assert main([str(folder), str(tmp_path / "out.parquet")]) == 2
    message = capsys.readouterr().err
    assert str(bad) in message
    assert "refused" in message
    assert f"{os.name}.system" in message
    assert not mark.exists()
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    "function",
    [
        eval,
        exec,
        getattr,
        __import__,
        np.load,
        np.fromfile,
        pd.read_pickle,
        subprocess.check_output,
    ],
)
def test_other_functions_are_refused(tmp_path, function):
    path = tmp_path / "2018-04-01.pkl"
    path.write_bytes(pickle.dumps(Malicious(function, "1"), 4))
    with pytest.raises(FrameError, match=rf"refused: it names \S+\.{function.__name__}"):
        read_pickled_frame(path)


def test_a_path_through_an_allowed_name_is_refused(tmp_path):
    path = tmp_path / "2018-04-01.pkl"
    path.write_bytes(b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.")
    with pytest.raises(FrameError, match=r"names numpy\.ndarray\.tofile"):
        read_pickled_frame(path)


def test_arrays_of_pointers_and_records_are_refused(tmp_path):
    path = tmp_path / "2018-04-01.pkl"
    path.write_bytes(pickle.dumps(np.zeros(3, [("a", "i4")]), 2))
    with pytest.raises(FrameError, match="damaged or not a pickled frame"):
        read_pickled_frame(path)
    pointers = Malicious(np._core.numeric._frombuffer, bytes(8), np.dtype(object), (1,), "C")
    path.write_bytes(pickle.dumps(pointers, 4))
    with pytest.raises(FrameError, match="cannot create an OBJECT array"):
        read_pickled_frame(path)


def test_gaps_are_named(tmp_path, capsys):
    folder, out = write_days(tmp_path / "days", days=(DAYS[0], DAYS[2])), tmp_path / "out.parquet"
    assert main([str(folder), str(out)]) == 2
    assert "lacks the days 2018-04-02\n" in capsys.readouterr().err
    assert main([str(folder), str(out), "--until", "2018-04-30"]) == 2
    assert "2018-04-02, 2018-04-04" in (message := capsys.readouterr().err)
    assert "and 23 more" in message
    assert main([str(folder), str(out), "--from", "2018-05-01"]) == 2
    assert "no day was chosen" in capsys.readouterr().err
    assert not out.exists()


def test_no_files(tmp_path, capsys):
    assert main([str(tmp_path), str(tmp_path / "out.parquet")]) == 2
    assert "has no files YYYY-MM-DD.pkl" in capsys.readouterr().err
    assert main([str(tmp_path / "none"), str(tmp_path / "out.parquet")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_damage_at_any_place_is_an_error(tmp_path):
    whole = pickle.dumps(build_frame(DAYS[0], n_rows=5), 4)
    path = tmp_path / "2018-04-01.pkl"
    for end in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:end])
        with pytest.raises(FrameError, match="damaged"):
            read_pickled_frame(path)
    path.write_bytes(pickle.dumps({"not": "a frame"}))
    with pytest.raises(FrameError, match="does not hold a frame"):
        read_pickled_frame(path)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("TX_DATETIME", pd.Timestamp("2018-04-02 00:00:00"), "not on the day of the file"),
        ("TX_DATETIME", pd.NaT, "not a time"),
        ("TX_AMOUNT", np.nan, "column TX_AMOUNT: found nan"),
        ("CUSTOMER_ID", "somebody", "column CUSTOMER_ID: a value is not a number"),
        ("TERMINAL_ID", 1.5, "column TERMINAL_ID: found 1.5"),
        ("TERMINAL_ID", 40_000, "TERMINAL_ID"),
    ],
)
def test_wrong_values_are_named(tmp_path, capsys, column, value, message):
    frame = build_frame(DAYS[0])
    frame.loc[frame.index[3], column] = value
    path = tmp_path / "2018-04-01.pkl"
    path.write_bytes(pickle.dumps(frame, 4))
    assert main([str(tmp_path), str(tmp_path / "out.parquet")]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert message in error


def test_missing_columns_are_named(tmp_path, capsys):
    frame = build_frame(DAYS[0]).drop(columns=["TX_FRAUD", "TERMINAL_ID"])
    (tmp_path / "2018-04-01.pkl").write_bytes(pickle.dumps(frame, 4))
    assert main([str(tmp_path), str(tmp_path / "out.parquet")]) == 2
    assert "lacks the columns TERMINAL_ID, TX_FRAUD" in capsys.readouterr().err


def test_the_command_runs_without_pandas(tmp_path):
    folder, out = write_days(tmp_path / "days"), tmp_path / "out.parquet"
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "from benchmarks.convert_handbook import main\n"
        f"sys.exit(main([{str(folder)!r}, {str(out)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "150 transactions of 3 days" in done.stdout
