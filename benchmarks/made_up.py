"""Two made-up payment files with other columns and other kinds of fraud than the simulators'."""

from __future__ import annotations

import numpy as np
import polars as pl

from turncoat.data.schema import Schema

DAY = 86_400.0
_START = 1_700_000_000.0

TRANSFERS = Schema(
    name="transfers",
    customer=("account",),
    time="booked_at",
    id="transfer",
    label="confirmed_fraud",
    amount="value",
    continuous=("value", "balance_share"),
    categorical=("channel", "country", "purpose"),
    counterparties=("beneficiary",),
    tracked=("device", "beneficiary"),
)
ORDERS = Schema(
    name="orders",
    customer=("shopper",),
    time="ordered_at",
    id="order_no",
    label="chargeback",
    amount="total",
    continuous=("total", "n_items", "minutes_on_site"),
    categorical=("card_country", "ship_country", "express", "category"),
    counterparties=("address",),
    tracked=("address",),
)


def simulate_transfers(seed: int, n_accounts: int = 150, n_days: int = 180) -> pl.DataFrame:
    """Few business accounts with long histories.

    Fraud is a takeover of up to three hours: several transfers, each a little below the account's
    usual size, to beneficiaries that other taken-over accounts pay too. Half of the thieves have a
    device of their own, the others use the account's. Owners have new devices and pay new
    beneficiaries, too.
    """
    rng = np.random.default_rng(seed)
    mules = [f"M{i}" for i in range(25)]
    rows = []
    for account in range(n_accounts):
        size, spread = rng.normal(6.0, 1.0), rng.uniform(0.3, 0.9)
        rate, night = rng.gamma(3.0, 3.5), rng.random() < 0.2
        partners = [f"B{account}-{i}" for i in range(rng.integers(5, 40))]
        devices = [f"D{account}-{i}" for i in range(rng.integers(1, 4))]
        for day in range(n_days):
            if day % 7 >= 5 and rng.random() < 0.8:
                continue
            hours = rng.normal(22.0 if night else 13.0, 3.0, rng.poisson(rate)) % 24
            for hour in hours:
                to = rng.choice(partners) if rng.random() < 0.95 else f"N{rng.integers(10**9)}"
                at = (account, day, hour, np.exp(rng.normal(size, spread)), to)
                device = rng.choice(devices) if rng.random() < 0.97 else f"X{rng.integers(10**9)}"
                channel = rng.choice(["web", "api", "app"], p=[0.3, 0.6, 0.1])
                rows.append((*at, device, channel, rng.beta(1, 8), rng.random() < 0.02, 0))
            if rng.random() < 0.012:
                start, thief = rng.uniform(0, 22), f"X{rng.integers(10**9)}"
                thief = thief if rng.random() < 0.5 else rng.choice(devices)
                for _ in range(rng.integers(4, 12)):
                    hour, value = start + rng.uniform(0, 3), np.exp(rng.normal(size - 0.1, 0.2))
                    to = rng.choice(mules) if rng.random() < 0.3 else f"N{rng.integers(10**9)}"
                    at = (account, day, hour, value, to)
                    rows.append((*at, thief, "web", rng.beta(2, 6), rng.random() < 0.1, 1))
    names = ["account", "day", "hour", "value", "beneficiary", "device", "channel"]
    names += ["balance_share", "abroad", "confirmed_fraud"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    seconds = _START + (pl.col("day") + pl.col("hour") / 24) * DAY
    purpose = pl.Series(rng.choice(["invoice", "salary", "other"], len(frame)))
    country = pl.when("abroad").then(pl.lit("LT")).otherwise(pl.lit("DE"))
    more = (seconds.alias("booked_at"), country.alias("country"), purpose.alias("purpose"))
    return _number(frame.with_columns(*more), "booked_at", "transfer")


def simulate_orders(seed: int, n_shoppers: int = 45_000, n_days: int = 120) -> pl.DataFrame:
    """Many shoppers with one to three orders.

    Fraud comes in rings: for some days, new shoppers with foreign cards send goods that sell well
    to one of a few addresses. Single stolen cards make up the rest.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.choice([1, 2, 3], n_shoppers, p=[0.6, 0.27, 0.13])
    shopper = np.repeat(np.arange(n_shoppers), sizes)
    n = len(shopper)
    day = rng.uniform(0, n_days, n)
    total = np.exp(rng.normal(3.8, 0.7, n))
    card = rng.choice(["FR", "BE", "DE", "US"], n, p=[0.8, 0.1, 0.07, 0.03])
    category = rng.choice(["clothes", "books", "phones", "games"], n, p=[0.5, 0.3, 0.1, 0.1])
    address = np.char.add("A", shopper.astype(str))
    minutes, express = rng.gamma(2.0, 6.0, n), rng.random(n) < 0.1
    fraud = rng.random(n) < 0.003
    parts = [(shopper, day, total, card, category, address, minutes, express, fraud)]
    for ring in range(40):
        m, start = int(rng.integers(10, 60)), rng.uniform(0, n_days - 10)
        who = n_shoppers + ring * 100 + rng.integers(0, 100, m)
        to = np.char.add(f"R{ring}-", rng.integers(0, 3, m).astype(str))
        what = rng.choice(["phones", "games", "clothes"], m, p=[0.6, 0.2, 0.2])
        whose = rng.choice(["US", "FR", "DE"], m, p=[0.4, 0.4, 0.2])
        when, size = start + rng.exponential(4.0, m), np.exp(rng.normal(4.8, 0.6, m))
        parts.append((who, when, size, whose, what, to, rng.gamma(1.5, 3.0, m),
                      rng.random(m) < 0.5, np.ones(m, bool)))  # fmt: skip
    who, when, size, whose, what, to, stay, fast, bad = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    lone = bad & (who < n_shoppers)
    size = np.where(lone, size * rng.uniform(1.5, 4.0, len(size)), size)
    frame = pl.DataFrame({"shopper": who, "ordered_at": _START + np.minimum(when, n_days) * DAY,
                          "total": size, "card_country": whose, "ship_country": "FR",
                          "category": what, "address": to, "minutes_on_site": stay,
                          "express": fast.astype(int), "n_items": 1 + rng.poisson(1.2, len(who)),
                          "chargeback": bad.astype(int)})  # fmt: skip
    return _number(frame, "ordered_at", "order_no")


def _number(frame: pl.DataFrame, time: str, name: str) -> pl.DataFrame:
    """The rows in order of time, numbered."""
    return frame.sort(time).with_row_index(name)
