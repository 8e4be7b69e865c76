"""Data of the shape of the IEEE-CIS fraud detection set, with lives behind them: ordinary regimes, and fraud in episodes.

Nothing here is the genuine data: only the columns, types, missing rates and numbers of categories are those of the genuine files.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from turncoat.data.simulators.ieee_episodes import EPISODES, NONE, plan_episodes
from turncoat.data.simulators.ieee_identity import identities
from turncoat.data.simulators.ieee_lives import REGIMES, Lives, make_lives
from turncoat.data.simulators.ieee_missing import empty_cells
from turncoat.data.simulators.ieee_people import make_people
from turncoat.data.simulators.ieee_transactions import transactions
from turncoat.errors import ConfigError


def ieee_cis(n_rows: int, seed: int) -> dict[str, pl.DataFrame]:
    """Tables `train_transaction`, `train_identity` and `truth`, the same for the same size and seed.

    The window is 182 days at any size; fewer rows mean fewer customers. Samples of different seeds come from one world: what
    a column means, and how fraud goes about, is the same in all. The truth, for evaluation only, tells the hidden person, the
    regime they were in, and the episode of fraud a transaction is part of; its number is -1 outside of episodes.
    """
    if n_rows < 1:
        raise ConfigError(
            f"n_rows must be at least 1; found {n_rows}. Ask for one transaction or more"
        )
    if seed < 0:
        raise ConfigError(
            f"seed must be at least 0; found {seed}. Any whole number from 0 on will do"
        )
    children = np.random.SeedSequence(seed).spawn(6)
    of_people, of_episodes, of_lives, of_empty, of_transactions, of_identities = (
        np.random.default_rng(child) for child in children
    )
    people = make_people(n_rows, of_people)
    lives = make_lives(people, plan_episodes(people, of_episodes), of_lives)
    empty = empty_cells(people, lives, of_empty)
    frame = transactions(people, lives, empty, of_transactions)
    return {
        "train_transaction": frame,
        "train_identity": identities(people, lives, empty, of_identities),
        "truth": _truth(lives, frame["TransactionID"]),
    }


def _truth(lives: Lives, ids: pl.Series) -> pl.DataFrame:
    in_episode = lives.episode != NONE
    numbered = np.unique(lives.person[in_episode], return_inverse=True)[1]
    episode_id = np.full(len(lives), -1, np.int64)
    episode_id[in_episode] = numbered
    return pl.DataFrame(
        {
            "TransactionID": ids,
            "customer": lives.person.astype(np.int64),
            "regime": pl.Series(REGIMES, dtype=pl.String).gather(lives.regime.astype(np.uint32)),
            "episode": pl.Series(EPISODES, dtype=pl.String).gather(lives.episode.astype(np.uint32)),
            "episode_id": episode_id,
        }
    )
