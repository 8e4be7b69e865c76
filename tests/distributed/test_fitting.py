"""Fits on a cluster equal fits in one process, whatever happens to the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from distributed import Client, LocalCluster
from tests.distributed.helpers import kill_worker, make_panels
from turncoat import (
    Anchors,
    BaumWelchHMM,
    ConfigError,
    DataError,
    Encoder,
    NeuralVariationalHMM,
    Panel,
    VariationalHMM,
    distributed,
)
from turncoat.data import Schema, read
from turncoat.distributed import clusters
from turncoat.distributed.rows import ClusterRows, PackedParts, PartList
from turncoat.distributed.worker_tasks import take_rows
from turncoat.errors import ClusterError
from turncoat.features import Features
from turncoat.models import fitting
from turncoat.models.fit_rows import FitOptions, PanelRows

PANELS = make_panels()
JOINED = Panel.join(PANELS)
OPTIONS = {"n_restarts": 2, "max_iter": 6, "precision": "float64", "progress": False}
SHORT = OPTIONS | {"n_restarts": 1}  # each iteration on a cluster is a round trip
SCHEMA = Schema(
    customer=("card",),
    time="at",
    continuous=("amount", "score"),
    categorical=("kind",),
    counterparties=("shop",),
    id="number",
)
# A scheduler and a worker in one process, which a test can kill.
SERVER = """
from distributed import LocalCluster
if __name__ == "__main__":
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(n_workers=1, protocol="tcp://", host="127.0.0.1", **options) as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Client]:
    """Two processes with one thread each."""
    with distributed.connect("local:2", progress=False) as client:
        yield client


@pytest.fixture(scope="module")
def one_worker() -> Iterator[Client]:
    """One worker with three threads, in this process."""
    options = {"processes": False, "threads_per_worker": 3, "dashboard_address": None}
    with LocalCluster(n_workers=1, **options) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of five parts."""
    rng, n_rows = np.random.default_rng(0), 3000
    frame = pl.DataFrame(
        {
            "number": np.arange(n_rows),
            "card": rng.integers(0, 200, n_rows),
            "at": np.cumsum(rng.exponential(600.0, n_rows)),
            "amount": rng.gamma(2.0, 20.0, n_rows),
            "score": rng.normal(size=n_rows) + 3.0 * rng.integers(0, 2, n_rows),
            "kind": rng.choice(["a", "b", "c"], n_rows).tolist(),
            "shop": rng.integers(0, 30, n_rows).astype(str),
        }
    )
    path = tmp_path_factory.mktemp("data") / "parts"
    distributed.write_shards(frame, SCHEMA, n_parts=5, out=path)
    return path


def fit_features(folder: Path) -> Features:
    """Return features of the customers' own history, fitted on one part."""
    names = ["amount", "score", "kind", "amount_to_mean"]
    return Features(include=names, min_count=5).fit(read(folder / "part-0000.parquet", SCHEMA))


def join_parts(folder: Path, features: Features) -> Panel:
    shards = distributed.load_shards(folder).shards
    parts = (read(folder / shard.file, SCHEMA) for shard in shards)
    return Panel.join([features.transform(part) for part in parts])


def check_close(one: Any, other: Any, rtol: float) -> None:
    assert one.fit_report_.n_iter == other.fit_report_.n_iter
    assert one.lower_bound_ == pytest.approx(other.lower_bound_, rel=rtol)
    for field in fields(one.params_):
        own, expected = (getattr(model.params_, field.name) for model in (one, other))
        if isinstance(own, np.ndarray):
            np.testing.assert_allclose(own, expected, rtol=rtol, atol=rtol * 1e-3)


def check_identical(one: Any, other: Any) -> None:
    assert one.fit_report_.history == other.fit_report_.history
    for field in fields(one.params_):
        own, expected = (getattr(model.params_, field.name) for model in (one, other))
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("transitions", ["per-row", "continuous"])
@pytest.mark.parametrize("tier", [BaumWelchHMM, VariationalHMM])
def test_a_cluster_fit_equals_a_local_one(
    one_worker: Client, tier: type[Any], transitions: str
) -> None:
    options = OPTIONS | {"transitions": transitions}
    found = distributed.fit(tier(3, **options), PANELS, cluster=one_worker)
    check_close(found, tier(3, **options).fit(JOINED), rtol=1e-9)


def test_single_precision_is_close(one_worker: Client) -> None:
    panels = [
        Panel.from_arrays(
            panel.continuous.astype(np.float32),
            panel.categorical,
            panel.lengths,
            n_categories=panel.n_categories,
        )
        for panel in PANELS
    ]
    options = OPTIONS | {"precision": "float32"}
    found = distributed.fit(VariationalHMM(3, **options), panels, cluster=one_worker)
    check_close(found, VariationalHMM(3, **options).fit(Panel.join(panels)), rtol=1e-3)


def test_anchors_weights_and_unused_columns(one_worker: Client) -> None:
    states = [[True, True, False], [False, False, True]]
    rng, parts = np.random.default_rng(0), []
    for place, panel in enumerate(PANELS):
        anchors = Anchors(rng.integers(-1, 2, panel.n_rows), states, noise=0.05)
        weights = None if place == 1 else rng.uniform(0.5, 2.0, panel.n_sequences)
        parts.append(PanelRows(panel, anchors, weights))
    own = [np.ones(len(p.panel)) if p.weights is None else p.weights for p in parts]
    codes = np.concatenate([part.anchors.codes for part in parts if part.anchors is not None])
    options = OPTIONS | {"weights": [1.0, 0.5, 0.0, 1.0, 1.0]}
    found = distributed.fit(VariationalHMM(3, **options), parts, cluster=one_worker)
    anchors, weights = Anchors(codes, states, noise=0.05), np.concatenate(own)
    expected = VariationalHMM(3, **options).fit(JOINED, anchors=anchors, sample_weight=weights)
    check_close(found, expected, rtol=1e-9)


def test_workers_encode_for_the_neural_tier(one_worker: Client) -> None:
    labels = np.random.default_rng(0).integers(0, 2, JOINED.n_rows)
    columns = JOINED.continuous, JOINED.categorical, JOINED.lengths
    labelled = Panel.from_arrays(*columns, labels=labels, n_categories=JOINED.n_categories)
    encoder = Encoder(latent_dim=4, max_epochs=1, device="cpu").train(labelled, progress=False)
    model = NeuralVariationalHMM(2, encoder=encoder, **SHORT)
    found = distributed.fit(model, PANELS, cluster=one_worker)
    expected = NeuralVariationalHMM(2, encoder=encoder, **SHORT).fit(JOINED)
    check_close(found, expected, rtol=1e-9)
    assert found.filter(JOINED).probs.shape == (JOINED.n_rows, 2)
    with pytest.raises(ConfigError, match="an encoder is trained on rows that fit into memory"):
        distributed.fit(NeuralVariationalHMM(3, progress=False), PANELS, cluster=one_worker)


def test_the_number_of_workers_does_not_matter(
    one_worker: Client, two_workers: Client, folder: Path
) -> None:
    features = fit_features(folder)
    models = [VariationalHMM(3, transitions="continuous", **SHORT) for _ in range(3)]
    distributed.fit(models[0], folder, features, cluster=one_worker)
    distributed.fit(models[1], folder, features, cluster=two_workers)
    check_identical(*models[:2])
    check_close(models[0], models[2].fit(join_parts(folder, features)), rtol=1e-9)


def test_few_passes_equal_those_of_one_process(
    one_worker: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_MIN_BATCH_ROWS", JOINED.n_rows)  # all parts are one batch
    few = OPTIONS | {"max_passes": 3}
    found = distributed.fit(VariationalHMM(3, **few), PANELS, cluster=one_worker)
    check_close(found, VariationalHMM(3, **few).fit(JOINED), rtol=1e-9)


def test_batches_are_groups_of_parts(one_worker: Client) -> None:
    parts = PartList(("a", "b", "c"), tuple(map(PanelRows, PANELS)), take_rows, 3, (3, 2))
    asked = FitOptions(2, "float64", 1, False)
    packed = ClusterRows(one_worker, parts, progress=False).pack(np.ones(5, bool), asked)
    assert [one.names for one in packed.list_batches(2)] == [("a",), ("b", "c")]
    assert [one.n_rows for one in packed.list_batches(9)] == [one.n_rows for one in PANELS]


def run_at_iteration(monkeypatch: pytest.MonkeyPatch, n: int, action: Callable[[], None]) -> None:
    """Act just before the n-th E-step of a fit."""
    counted, collect = [0], PackedParts.collect

    def act_and_collect(self: PackedParts, model: Any) -> Any:
        counted[0] += 1
        if counted[0] == n:
            action()
        return collect(self, model)

    monkeypatch.setattr(PackedParts, "collect", act_and_collect)


def test_a_killed_worker_changes_nothing(
    two_workers: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = fit_features(folder)
    expected = distributed.fit(VariationalHMM(2, **SHORT), folder, features, cluster=two_workers)
    before = two_workers.run(os.getpid)
    victim = next(iter(before.values()))
    run_at_iteration(monkeypatch, 4, lambda: os.kill(victim, signal.SIGKILL))
    found = distributed.fit(VariationalHMM(2, **SHORT), folder, features, cluster=two_workers)
    check_identical(found, expected)
    assert victim not in two_workers.run(os.getpid).values()


def test_workers_that_keep_dying_are_an_error(two_workers: Client) -> None:
    two_workers.cluster.scheduler.allowed_failures = 0
    parts = PartList(("part-0007.parquet",), (PANELS[0],), kill_worker, 3, (3, 2))
    with pytest.raises(ClusterError, match=r"died .* at part-0007.parquet\. Usually memory: make"):
        VariationalHMM(2, **SHORT).fit_rows(ClusterRows(two_workers, parts, progress=False))


def test_a_damaged_part_is_named(one_worker: Client, folder: Path) -> None:
    features, path = fit_features(folder), folder / "part-0003.parquet"
    content = path.read_bytes()
    try:
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(DataError, match=r"part-0003\.parquet: the part is damaged"):
            distributed.fit(VariationalHMM(2, **SHORT), folder, features, cluster=one_worker)
        path.unlink()
        with pytest.raises(DataError, match=r"part-0003\.parquet: the part cannot be read"):
            distributed.fit(VariationalHMM(2, **SHORT), folder, features, cluster=one_worker)
    finally:
        path.write_bytes(content)


def test_a_scheduler_that_goes_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER], **streams) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        monkeypatch.setattr(clusters, "CONNECT_TIMEOUT_S", 3.0)
        monkeypatch.setattr(clusters, "_ANSWER_TIMEOUT_S", 3.0)
        run_at_iteration(monkeypatch, 3, server.kill)
        with pytest.raises(ClusterError, match=f"{address}: the scheduler went away"):
            distributed.fit(VariationalHMM(2, **SHORT), PANELS, cluster=address)
    with pytest.raises(ClusterError, match=f"{address}: no scheduler answers there"):
        distributed.fit(VariationalHMM(2, **SHORT), PANELS, cluster=address)


def test_what_cannot_be_fitted_is_refused(
    one_worker: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, part = VariationalHMM(2, **SHORT), read(folder / "part-0000.parquet", SCHEMA)

    def refuse(words: str, *args: Any, cluster: Any = "nowhere") -> None:
        with pytest.raises((ConfigError, DataError), match=words):
            distributed.fit(model, *args, cluster=cluster)

    refuse("needs fitted features", folder)
    refuse("need the rows of other customers", folder, Features().fit(part))
    other = Schema(customer=("shop",), time="at", continuous=("amount",))
    own = Features("processed").fit(read(folder, other))
    refuse("parts by customer card, but", folder, own)
    refuse("panels have features already", PANELS, own)
    refuse("no part was given", [])
    narrow = Panel.from_arrays(np.zeros((4, 1)))
    refuse("panel 1: its columns differ", [PANELS[0], narrow])
    anchors = Anchors(np.zeros(PANELS[1].n_rows, int), [[True, False]])
    refuse("panel 1: its anchors differ", [PANELS[0], PanelRows(PANELS[1], anchors)])
    refuse("cluster is 'nowhere'; it must be", PANELS)
    refuse("cluster is 'local:0'", PANELS, cluster="local:0")
    single = Panel.from_arrays(np.zeros((4, 1), np.float32))
    refuse("panel 1: its cells are float32", [narrow, single], cluster=one_worker)
    monkeypatch.setitem(sys.modules, "distributed", None)
    refuse(r"pip install turncoat\[cluster\]", PANELS, cluster="local:1")
