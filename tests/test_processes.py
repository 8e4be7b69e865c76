"""Benchmark data sets with other fraud processes: complete, readable, with enough fraud."""

import pytest
from benchmarks.processes import (
    LABEL_DELAYS_DAYS,
    N_DAYS,
    N_ROWS,
    PROCESSES,
    SETTINGS,
    count_frauds,
)

from turncoat.data import read
from turncoat.data.simulators.handbook import PUBLISHED_PROCESS, simulate_handbook

FIRST = {setting.name: setting for setting in reversed(SETTINGS)}


def test_every_process_comes_with_every_label_delay():
    pairs = [(setting.name, setting.label_delay_days) for setting in SETTINGS]
    assert pairs == [(name, delay) for name in PROCESSES for delay in LABEL_DELAYS_DAYS]
    assert len(PROCESSES) >= 8
    assert len({setting.process for setting in SETTINGS}) == len(PROCESSES)
    assert len({setting.description for setting in SETTINGS}) == len(PROCESSES)


def test_the_published_setting_is_the_published_process():
    assert FIRST["published"].process == PUBLISHED_PROCESS
    expected = simulate_handbook(N_ROWS, 3, n_days=N_DAYS)["transactions"]
    assert FIRST["published"].simulate(3).equals(expected)


@pytest.mark.parametrize("name", PROCESSES)
def test_every_process_has_a_few_hundred_frauds_to_test_on(name):
    counts = count_frauds(FIRST[name], 0)
    assert counts["rows"] == N_ROWS
    assert 250 < counts["test frauds"] < 550
    assert (counts["scenario 2"] == 0) == (name == "no counterparty effect")
    assert (counts["scenario 3"] == 0) == (name == "no customer effect")


def test_the_data_can_be_read_as_the_handbooks():
    transactions = read(FIRST["weak share"].simulate(1), "handbook")
    assert transactions.n_rows == N_ROWS
