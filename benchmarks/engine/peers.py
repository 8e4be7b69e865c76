"""One EM iteration of each peer, from the common start, through the peer's own steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.engine.workloads import Array, Start, Workload


@dataclass(frozen=True)
class Peer:
    """A model ready to iterate.

    `iterate` runs one full EM iteration, `log_likelihood` scores the start.
    """

    iterate: Callable[[], object]
    log_likelihood: Callable[[], float]
    what: str


def hmmlearn_gaussian(workload: Workload, implementation: str) -> Peer:
    """GaussianHMM, diagonal, with the `log` or the `scaling` implementation."""
    from hmmlearn.hmm import GaussianHMM

    start = workload.start
    model = GaussianHMM(len(start.means), "diag", init_params="", implementation=implementation)
    model.n_features = start.means.shape[1]
    model.startprob_, model.transmat_ = start.initial_probs, start.transition_matrix
    model.means_, model.covars_ = start.means, start.variances
    rows = workload.continuous.astype(np.float64)
    what = (
        f"GaussianHMM(diag, {implementation}), float64 rows, _do_estep + _do_mstep as fit() "
        f"calls them, input check left out"
    )
    return Peer(
        lambda: _hmmlearn_iteration(model, rows, workload.lengths),
        lambda: float(model.score(rows, workload.lengths)),
        what,
    )


def _hmmlearn_iteration(model: Any, rows: Array, lengths: Array) -> float:
    statistics, log_likelihood = model._do_estep(rows, lengths)
    bound = model._compute_lower_bound(log_likelihood)
    model._do_mstep(statistics)
    return float(bound)


@dataclass(frozen=True)
class VariationalPrior:
    """The prior that hmmlearn's variational model and ours share.

    `dof` is at least the number of columns, as hmmlearn needs.
    """

    dof: float
    scale: float
    sticky: float = 4.0


def hmmlearn_variational(workload: Workload, prior: VariationalPrior) -> tuple[Peer, Any]:
    """VariationalGaussianHMM, diagonal, started without its k-means.

    Also the model, for its decoded states.
    """
    from hmmlearn.vhmm import VariationalGaussianHMM

    start = workload.start
    n_states, n_columns = start.means.shape
    share = np.full(n_states, workload.n_rows / n_states)
    model = VariationalGaussianHMM(n_states, "diag", implementation="scaling")
    model.n_features = n_columns
    model.startprob_prior_, model.startprob_posterior_ = np.ones(n_states), np.ones(n_states)
    model.transmat_prior_ = 1 + prior.sticky * np.eye(n_states)
    model.transmat_posterior_ = model.transmat_prior_ + start.transition_matrix * share[:, None]
    model.means_prior_, model.means_posterior_ = np.zeros_like(start.means), start.means.copy()
    model.beta_prior_, model.beta_posterior_ = np.ones(n_states), 1 + share
    model.dof_prior_, model.dof_posterior_ = np.full(n_states, prior.dof), prior.dof + share
    model.scale_prior_ = np.full_like(start.means, prior.scale)
    model.scale_posterior_ = start.variances * model.dof_posterior_[:, None]
    model.covars_ = start.variances
    rows = workload.continuous.astype(np.float64)
    what = (
        "VariationalGaussianHMM(diag, scaling), float64 rows, _estep_begin + _do_estep + "
        "bound + _do_mstep, its k-means left out"
    )
    return Peer(
        lambda: _hmmlearn_iteration(model, rows, workload.lengths), lambda: float("nan"), what
    ), model


def pomegranate(workload: Workload) -> Peer:
    """DenseHMM of diagonal Normals.

    Sequences of one length share a tensor, as its fit() would group them.
    """
    import torch
    from pomegranate.distributions import Normal
    from pomegranate.hmm import DenseHMM

    start = _in_float32(workload.start)
    states = [
        Normal(mean, variance, covariance_type="diag", check_data=False)
        for mean, variance in zip(start.means, start.variances, strict=True)
    ]
    always_ending = np.ones(
        len(states), np.float32
    )  # an end probability of one adds nothing to the likelihood
    model = DenseHMM(
        states, start.transition_matrix, start.initial_probs, always_ending, check_data=False
    )
    batches = [torch.from_numpy(batch) for batch in _batches_of_equal_length(workload)]

    def summarize() -> float:
        return sum(float(model.summarize(batch).sum()) for batch in batches)

    def iterate() -> None:
        with torch.inference_mode():
            summarize()
            model.from_summaries()

    def log_likelihood() -> float:
        with torch.inference_mode():
            return sum(float(model.log_probability(batch).double().sum()) for batch in batches)

    what = (
        "DenseHMM of diagonal Normals, float32, no input checks, summarize over one tensor "
        "per length + from_summaries"
    )
    return Peer(iterate, log_likelihood, what)


def _in_float32(start: Start) -> Start:
    initial_probs, transition_matrix = (
        start.initial_probs.astype(np.float32),
        start.transition_matrix.astype(np.float32),
    )
    return Start(
        initial_probs,
        transition_matrix,
        start.means.astype(np.float32),
        start.variances.astype(np.float32),
    )


def _batches_of_equal_length(workload: Workload) -> list[Array]:
    """[sequences, length, columns] for every length that occurs."""
    offsets = np.concatenate(([0], np.cumsum(workload.lengths)))
    batches = []
    for length in np.unique(workload.lengths):
        begins = offsets[:-1][workload.lengths == length]
        batches.append(np.stack([workload.continuous[begin : begin + length] for begin in begins]))
    return batches


def dynamax(workload: Workload) -> Peer:
    """DiagonalGaussianHMM; the EM step of its fit_em, jitted once, over sequences of one length."""
    import jax
    from dynamax.hidden_markov_model import DiagonalGaussianHMM
    from jax import numpy as jnp

    start = _in_float32(workload.start)
    n_states, n_columns = start.means.shape
    emissions = jnp.asarray(workload.continuous.reshape(len(workload.lengths), -1, n_columns))
    model = DiagonalGaussianHMM(n_states, n_columns)
    params, properties = model.initialize(
        initial_probs=jnp.asarray(start.initial_probs),
        transition_matrix=jnp.asarray(start.transition_matrix),
        emission_means=jnp.asarray(start.means),
        emission_scale_diags=jnp.sqrt(jnp.asarray(start.variances)),
    )

    @jax.jit
    def em_step(params: Any, emissions: Any) -> Any:
        statistics, log_likelihoods = jax.vmap(lambda sequence: model.e_step(params, sequence))(
            emissions
        )
        state = model.initialize_m_step_state(params, properties)
        return model.m_step(params, properties, statistics, state)[0], log_likelihoods

    current = [params]

    def iterate() -> None:
        current[0], log_likelihoods = em_step(current[0], emissions)
        log_likelihoods.block_until_ready()
        current[0].emissions.means.block_until_ready()

    def log_likelihood() -> float:
        return float(np.asarray(em_step(params, emissions)[1], np.float64).sum())

    what = (
        "DiagonalGaussianHMM, float32, default priors, EM step of fit_em jitted and compiled "
        "before timing, one vmap over sequences"
    )
    return Peer(iterate, log_likelihood, what)
