"""Turncoat: sequential fraud detection with hidden Markov models."""

from turncoat.errors import BundleError, ConfigError, DataError, NotFittedError, TurncoatError
from turncoat.models.alignment import align_states
from turncoat.models.anchors import Anchors
from turncoat.models.base import Posteriors
from turncoat.models.baum_welch import BaumWelchHMM
from turncoat.models.fitting import FitReport, RestartReport
from turncoat.models.parameters import HMMParams, Prior, VariationalParams
from turncoat.models.storage import load_model
from turncoat.models.variational import VariationalHMM
from turncoat.panel import Panel

__version__ = "0.1.0"

__all__ = [
    "Anchors",
    "BaumWelchHMM",
    "BundleError",
    "ConfigError",
    "DataError",
    "FitReport",
    "HMMParams",
    "NotFittedError",
    "Panel",
    "Posteriors",
    "Prior",
    "RestartReport",
    "TurncoatError",
    "VariationalHMM",
    "VariationalParams",
    "align_states",
    "load_model",
]
