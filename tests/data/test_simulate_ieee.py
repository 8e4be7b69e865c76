"""The simulated IEEE-CIS data have the genuine shape, behaviour and difficulty."""

from collections import defaultdict

import numpy as np
import polars as pl
import pytest
import xgboost
from polars.testing import assert_frame_equal
from sklearn.metrics import average_precision_score, roc_auc_score

from turncoat.data.presets import IeeeColumn, load_ieee_columns
from turncoat.data.simulators.ieee import levels_of, simulate_ieee_cis
from turncoat.data.simulators.ieee_customers import (
    N_HABITS,
    draw_customers,
    draw_episodes,
    simulate_activity,
)
from turncoat.errors import ConfigError

N_ROWS = 36_000
DTYPES = {"int64": pl.Int64, "float64": pl.Float64, "string": pl.String}


@pytest.fixture(scope="module")
def tables():
    return simulate_ieee_cis(N_ROWS, 3)


@pytest.fixture(scope="module")
def joined(tables):
    """Transactions with identity and truth by customer, oldest first; some columns added."""
    frame = tables["train_transaction"].join(
        tables["train_identity"], on="TransactionID", how="left"
    )
    return (
        frame.join(tables["truth"], on="TransactionID")
        .sort("customer", "TransactionID")
        .with_columns(
            day=pl.col("TransactionDT") // 86_400,
            hour=pl.col("TransactionDT") % 86_400 // 3600,
            usual=pl.col("TransactionAmt")
            .filter(pl.col("episode") == "none")
            .median()
            .over("customer"),
        )
    )


def facts_of(file: str) -> list[IeeeColumn]:
    return [column for column in load_ieee_columns() if column.file == file]


def fraud_of(joined: pl.DataFrame, episode: str) -> pl.DataFrame:
    return joined.filter(pl.col("episode") == episode)


def test_ieee_columns_are_complete():
    assert len(facts_of("transaction")) == 394
    assert len(facts_of("identity")) == 41
    assert load_ieee_columns() is load_ieee_columns()
    known = [column for column in load_ieee_columns() if column.levels]
    assert all(len(set(column.levels)) == column.n_categories for column in known)
    assert len(known) > 20


@pytest.mark.parametrize("file", ["transaction", "identity"])
def test_columns_and_types_are_genuine(tables, file):
    expected = {column.name: DTYPES[column.dtype] for column in facts_of(file)}
    assert list(tables[f"train_{file}"].schema.items()) == list(expected.items())


def test_rows_ids_and_times(tables):
    frame = tables["train_transaction"]
    assert frame.height == N_ROWS
    assert frame["TransactionID"].to_list() == list(range(2_987_000, 2_987_000 + N_ROWS))
    times = frame["TransactionDT"]
    assert times.is_sorted()
    assert 86_400 <= times.min() < 2 * 86_400
    assert 181 * 86_400 < times.max() < 183 * 86_400
    per_week = np.bincount((times.to_numpy() // 86_400 - 1) // 7)[:26]
    assert per_week.min() > 0.5 * per_week.mean()


def test_truth_has_a_row_for_each_transaction(tables):
    truth, frame = tables["truth"], tables["train_transaction"]
    assert truth.columns == ["TransactionID", "customer", "regime", "episode", "episode_id"]
    assert_frame_equal(truth.select("TransactionID"), frame.select("TransactionID"))
    assert set(truth["episode"]) == {"none", "card-testing", "takeover", "bust-out", "one-off"}
    assert set(truth["regime"]) == {"ordinary", "travel", "season", "micropayments", "fraud"}
    fraud = frame["isFraud"] == 1
    assert ((truth["episode"] != "none") == fraud).all()
    assert ((truth["regime"] == "fraud") == fraud).all()
    assert ((truth["episode_id"] >= 0) == fraud).all()
    per_episode = (
        truth.filter(fraud).group_by("episode_id").agg(pl.col("customer", "episode").n_unique())
    )
    assert per_episode["customer"].max() == per_episode["episode"].max() == 1


def test_identity_belongs_to_a_quarter_of_the_transactions(tables):
    identity, frame = tables["train_identity"], tables["train_transaction"]
    assert identity["TransactionID"].is_in(frame["TransactionID"].implode()).all()
    assert identity["TransactionID"].n_unique() == identity.height
    assert identity.height / N_ROWS == pytest.approx(0.244, abs=0.005)
    product = frame.filter(pl.col("TransactionID").is_in(identity["TransactionID"].implode()))[
        "ProductCD"
    ]
    assert (product != "W").mean() > 0.9


@pytest.mark.parametrize(("n_rows", "seed"), [(5_000, 0), (5_000, 1), (12_000, 2), (N_ROWS, 3)])
def test_fraud_rate(tables, n_rows, seed):
    frame = (
        tables["train_transaction"]
        if n_rows == N_ROWS
        else simulate_ieee_cis(n_rows, seed)["train_transaction"]
    )
    four_deviations = 4 * np.sqrt(0.035 * 0.965 / n_rows)
    assert frame["isFraud"].mean() == pytest.approx(0.035, abs=four_deviations)


def test_missing_rates_are_genuine(tables):
    share_with_identity = tables["train_identity"].height / N_ROWS
    for column in load_ieee_columns():
        present = (
            1
            - tables[f"train_{column.file}"][column.name].null_count()
            / tables[f"train_{column.file}"].height
        )
        if column.file == "identity" and column.name != "TransactionID":
            present *= share_with_identity
        assert 1 - present == pytest.approx(column.missing_rate, abs=0.01), column.name


def test_columns_of_equal_rate_are_missing_together(tables):
    blocks = defaultdict(list)
    for column in facts_of("transaction"):
        if column.missing_rate:
            blocks[column.missing_rate].append(column.name)
    frame = tables["train_transaction"]
    patterns = set()
    for names in blocks.values():
        masks = frame.select(pl.col(names).is_null())
        assert all((masks[name] == masks[names[0]]).all() for name in names)
        patterns.add(masks[names[0]].to_numpy().tobytes())
    assert len(patterns) > 30
    assert max(len(names) for names in blocks.values()) == 46


def test_missing_depends_on_product_and_identity(tables):
    frame = tables["train_transaction"]
    of_w = frame["ProductCD"] == "W"
    assert frame.filter(~of_w)["M1"].null_count() > 0.95 * (~of_w).sum()
    assert frame.filter(of_w)["M1"].null_count() < 0.5 * of_w.sum()
    with_identity = frame["TransactionID"].is_in(
        tables["train_identity"]["TransactionID"].implode()
    )
    assert frame.filter(~with_identity)["V217"].null_count() == (~with_identity).sum()
    assert frame.filter(with_identity)["V217"].null_count() < 0.2 * with_identity.sum()


def test_same_seed_same_tables_other_seed_other_tables():
    first, again, other = (
        simulate_ieee_cis(700, 5),
        simulate_ieee_cis(700, 5),
        simulate_ieee_cis(700, 6),
    )
    for name in first:
        assert_frame_equal(first[name], again[name])
        assert not first[name].equals(other[name])
    changed = [
        c
        for c in first["train_transaction"].columns
        if not first["train_transaction"][c].equals(other["train_transaction"][c])
    ]
    assert len(changed) > 380


def test_global_random_state_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    simulate_ieee_cis(50, 0)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@pytest.mark.parametrize("n_rows", [1, 2, 3, 10, 101])
def test_small_sizes_work(n_rows):
    tables = simulate_ieee_cis(n_rows, 0)
    assert tables["train_transaction"].shape == (n_rows, 394)
    assert tables["train_identity"].width == 41
    assert tables["train_identity"].schema["DeviceInfo"] == pl.String
    assert tables["truth"].height == n_rows


@pytest.mark.parametrize("n_rows", [0, -3])
def test_bad_sizes_are_refused(n_rows):
    with pytest.raises(ConfigError, match=f"n_rows is {n_rows}; it must be a whole number of at"):
        simulate_ieee_cis(n_rows, 0)


def test_bad_seed_is_refused():
    with pytest.raises(ConfigError, match="seed is -1; it must be a whole number of at least 0"):
        simulate_ieee_cis(10, -1)


def test_cards_are_heavy_tailed_and_shared(joined):
    per_card = joined.group_by("card1").agg(rows=pl.len(), people=pl.col("customer").n_unique())
    assert per_card.height == round(13_553 * N_ROWS / 590_540)
    assert 2 <= per_card["rows"].median() <= 10
    assert per_card["rows"].max() > 150 * per_card["rows"].median()
    assert per_card["people"].max() > 50
    assert joined.group_by("customer").agg(pl.col("card1").n_unique())["card1"].max() == 1
    for name in ("card2", "card3", "card4", "card5", "card6"):
        assert joined.group_by("card1").agg(pl.col(name).drop_nulls().n_unique())[name].max() == 1


def test_day_less_d1_is_one_number_per_person(joined):
    known = joined.filter(pl.col("D1").is_not_null()).with_columns(
        first=pl.col("day") - pl.col("D1")
    )
    assert known.group_by("customer").agg(pl.col("first").n_unique())["first"].max() == 1
    assert known["D1"].min() == 0
    assert 400 < known["D1"].max() <= 640
    people_per_card = known.group_by("card1").agg(pl.col("customer").n_unique())["customer"].mean()
    people_per_key = (
        known.group_by("card1", "addr1", "first")
        .agg(pl.col("customer").n_unique())["customer"]
        .mean()
    )
    assert people_per_key < 1.3 < 3 < people_per_card


def test_time_deltas(joined):
    both = joined.filter(pl.col("D2").is_not_null() & pl.col("D1").is_not_null())
    assert (both["D2"] == both["D1"]).all()
    previous = joined.with_columns(
        gap=(pl.col("TransactionDT").diff().over("customer") / 86_400).floor()
    )
    since = previous.filter(pl.col("D3").is_not_null())
    assert (since["D3"] == since["gap"]).all()
    hours = joined.filter(pl.col("D9").is_not_null())
    assert ((hours["D9"] * 24).round() == hours["hour"]).all()


def test_values_look_genuine(tables):
    frame, identity = tables["train_transaction"], tables["train_identity"]
    amounts = frame["TransactionAmt"].to_numpy()
    assert amounts.min() > 0
    np.testing.assert_allclose(amounts, np.round(amounts, 2), atol=1e-9)
    assert (amounts % 1 > 0).mean() > 0.3
    assert 40 < np.median(amounts) < 110
    for name, level in {
        "ProductCD": "W",
        "card4": "visa",
        "card6": "debit",
        "P_emaildomain": "gmail.com",
    }.items():
        assert frame[name].drop_nulls().mode()[0] == level
    for name, level in {
        "DeviceInfo": "Windows",
        "id_33": "1920x1080",
        "id_30": "Windows 10",
    }.items():
        assert identity[name].drop_nulls().mode()[0] == level
    assert "chrome 63.0" in identity["id_31"]
    v_columns = frame.select(pl.col("^[CV][0-9]+$"))
    assert v_columns.width == 14 + 339
    assert min(column.min() for column in v_columns) >= 0
    whole = [((column % 1).fill_null(0) == 0).all() for column in v_columns]
    assert 0.6 < np.mean(whole) < 1


@pytest.mark.parametrize("file", ["transaction", "identity"])
def test_categories_are_genuine(tables, file):
    for column in facts_of(file):
        if column.kind != "categorical" or column.name == "card1":
            continue
        found = set(tables[f"train_{file}"][column.name].drop_nulls())
        assert found <= set(levels_of(column.name))
        assert len(levels_of(column.name)) == column.n_categories
        assert len(found) >= min(column.n_categories, 4) * 0.5, column.name
    many = (
        {"addr1": 300, "P_emaildomain": 55}
        if file == "transaction"
        else {"DeviceInfo": 500, "id_31": 120, "id_33": 200}
    )
    for name, fewest in many.items():
        counts = tables[f"train_{file}"][name].drop_nulls().value_counts()["count"]
        assert len(counts) >= fewest
        assert counts.max() > 20 * counts.median()


def test_card_testing_is_a_burst_of_tiny_amounts_then_a_large_one(joined):
    episodes = (
        fraud_of(joined, "card-testing")
        .group_by("episode_id")
        .agg(
            rows=pl.len(),
            tiny=pl.col("TransactionAmt").head(pl.len() - 1).max(),
            last=pl.col("TransactionAmt").last(),
            hours=(pl.col("TransactionDT").max() - pl.col("TransactionDT").min()) / 3600,
        )
    )
    assert episodes.height > 20
    assert episodes["rows"].min() >= 4
    assert episodes["tiny"].max() < 40
    assert (episodes["last"] > 5 * episodes["tiny"]).mean() > 0.9
    assert episodes["hours"].median() < 4


def test_takeover_has_new_device_new_address_odd_hour_and_larger_amounts(joined):
    own = (
        joined.filter(pl.col("episode") == "none")
        .group_by("customer")
        .agg(
            own_devices=pl.col("DeviceInfo").drop_nulls(),
            own_homes=pl.col("addr1").drop_nulls(),
            own_rows=pl.len(),
        )
    )
    compared = joined.join(own, on="customer").filter(pl.col("own_rows") > 1)
    strange = pl.col("DeviceInfo").is_in(pl.col("own_devices")).not_()
    away = pl.col("addr1").is_in(pl.col("own_homes")).not_()
    taken = fraud_of(compared, "takeover")
    with_device = taken.filter(
        pl.col("DeviceInfo").is_not_null() & (pl.col("own_devices").list.len() > 0)
    )
    assert with_device.height > 10
    assert with_device.select(strange.mean()).item() > 0.4
    settled = taken.filter(pl.col("addr1").is_not_null() & (pl.col("own_homes").list.len() > 0))
    assert settled.select(away.mean()).item() > 0.3
    ordinary = fraud_of(joined, "none")
    assert (taken["hour"] < 7).mean() > 2 * (ordinary["hour"] < 7).mean()
    assert (taken["TransactionAmt"] / taken["usual"]).median() > 1.5
    new = [
        frame.filter(pl.col("id_15").is_not_null())["id_15"].eq("New").mean()
        for frame in (taken, ordinary)
    ]
    assert 1.2 * new[1] < new[0] < 0.98


def test_bust_out_builds_up_slowly_to_its_largest_amounts(joined):
    episodes = (
        fraud_of(joined, "bust-out")
        .group_by("episode_id")
        .agg(
            rows=pl.len(),
            early=(pl.col("TransactionAmt") / pl.col("usual")).head(pl.len() // 2).median(),
            end=(pl.col("TransactionAmt") / pl.col("usual")).last(),
            days=(pl.col("day").max() - pl.col("day").min()),
        )
    )
    assert episodes.height > 10
    assert episodes["rows"].min() >= 5
    assert episodes["days"].median() >= 7
    assert 0.5 < episodes["early"].median() < 3
    assert episodes["end"].median() > 4 * episodes["early"].median()


def test_one_off_fraud_is_alone_in_a_life(joined):
    alone = fraud_of(joined, "one-off")
    assert alone.height > 100
    assert alone["customer"].n_unique() == alone.height
    assert (
        joined.filter(pl.col("customer").is_in(alone["customer"].implode()))["isFraud"].sum()
        == alone.height
    )


def test_regimes_last_and_change_behaviour(joined):
    ordinary = joined.filter(pl.col("episode") == "none")
    usual = ordinary.filter(pl.col("regime") == "ordinary")
    by_regime = {
        name: ordinary.filter(pl.col("regime") == name)
        for name in ("travel", "season", "micropayments")
    }
    assert (
        by_regime["micropayments"]["TransactionAmt"].median()
        < 0.2 * usual["TransactionAmt"].median()
    )
    assert by_regime["season"]["TransactionAmt"].median() > 1.3 * usual["TransactionAmt"].median()
    assert by_regime["travel"]["dist1"].median() > 1.5 * usual["dist1"].median()
    soon = pl.col("TransactionDT").diff().over("customer") < 86_400
    stays = pl.col("regime") == pl.col("regime").shift().over("customer")
    assert ordinary.filter(soon & (pl.col("regime") != "ordinary")).height > 500
    odd = ordinary.with_columns(soon=soon, stays=stays).filter(
        pl.col("soon") & (pl.col("regime") != "ordinary")
    )
    assert odd["stays"].mean() > 0.6


def test_habits_drift():
    """Habits differ more between two transactions the more time lies between them."""
    rng = np.random.default_rng(0)
    customers = draw_customers(20_000, rng)
    activity = simulate_activity(customers, draw_episodes(customers, rng), rng)
    order = np.lexsort((activity.seconds, activity.customer))
    person, days, habits = (
        activity.customer[order],
        activity.seconds[order] / 86_400,
        activity.behaviour[order, 3:N_HABITS],
    )

    def change(lag: int, fewest: float, most: float) -> float:
        gap = days[lag:] - days[:-lag]
        pairs = (person[lag:] == person[:-lag]) & (gap >= fewest) & (gap < most)
        assert pairs.sum() > 300
        return float(((habits[lag:] - habits[:-lag])[pairs] ** 2).mean())

    assert change(1, 0, 3) == pytest.approx(2 * 0.6**2, rel=0.05)
    assert change(10, 60, 182) > 1.15 * change(1, 0, 3)


def matrix_of(tables) -> tuple[np.ndarray, list[str], np.ndarray, np.ndarray]:
    frame = tables["train_transaction"].join(
        tables["train_identity"], on="TransactionID", how="left", maintain_order="left"
    )
    columns = (
        frame.drop("TransactionID", "isFraud")
        .with_columns(pl.col(pl.String).rank("dense"))
        .cast(pl.Float32)
    )
    return (
        columns.to_numpy(),
        columns.columns,
        frame["isFraud"].to_numpy(),
        frame["card1"].to_numpy(),
    )


@pytest.fixture(scope="module")
def problem(tables):
    cells, names, fraud, cards = matrix_of(tables)
    unique = np.unique(cards)
    test = np.isin(cards, np.random.default_rng(0).permutation(unique)[: len(unique) // 3])
    customers = tables["truth"]["customer"].to_numpy()
    assert not set(customers[test]) & set(customers[~test])
    return cells, names, fraud, test


def boosted_scores(cells: np.ndarray, fraud: np.ndarray, test: np.ndarray) -> tuple[float, float]:
    model = xgboost.XGBClassifier(
        n_estimators=80,
        max_depth=5,
        learning_rate=0.15,
        subsample=0.8,
        colsample_bytree=0.3,
        max_bin=64,
        n_jobs=2,
        random_state=0,
    )
    scores = model.fit(cells[~test], fraud[~test]).predict_proba(cells[test])[:, 1]
    return average_precision_score(fraud[test], scores), roc_auc_score(fraud[test], scores)


def test_honest_boosted_trees_find_it_hard(problem):
    cells, _, fraud, test = problem
    precision, area = boosted_scores(cells, fraud, test)
    assert 0.30 < precision < 0.75
    assert 0.80 < area < 0.95


def test_missing_cells_alone_do_not_tell_fraud(problem):
    cells, _, fraud, test = problem
    precision, area = boosted_scores(np.isnan(cells).astype(np.float32), fraud, test)
    assert precision < 0.15
    assert area < 0.75


def test_no_single_column_separates(problem):
    cells, names, fraud, _ = problem
    best = {}
    for place, name in enumerate(names):
        column = np.nan_to_num(cells[:, place], nan=-1.0)
        best[name] = max(
            average_precision_score(fraud, column), average_precision_score(fraud, -column)
        )
    assert 0.06 < max(best.values()) < 0.35, max(best, key=best.__getitem__)
