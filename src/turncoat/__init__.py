"""Turncoat: sequential fraud detection with hidden Markov models."""

from typing import TYPE_CHECKING

from turncoat.errors import (
    BundleError,
    ConfigError,
    DataError,
    EmptyStateWarning,
    NotFittedError,
    TurncoatError,
)
from turncoat.models.anchors import Anchors
from turncoat.models.base import Posteriors
from turncoat.models.baum_welch import BaumWelchHMM
from turncoat.models.fitting import FitReport, RestartReport
from turncoat.models.neural.encoder import Encoder
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.parameters import (
    ContinuousHMMParams,
    ContinuousVariationalParams,
    HMMParams,
    Prior,
    VariationalParams,
    align_states,
)
from turncoat.models.storage import load_model
from turncoat.models.variational import VariationalHMM
from turncoat.panel import Panel

if TYPE_CHECKING:
    from turncoat.scoring import Detector, DetectorState, load

__version__ = "0.1.0"

# The detector needs polars, which `import turncoat` alone does not load.
_FROM_SCORING = ("Detector", "DetectorState", "load")


def __getattr__(name: str) -> object:
    """Import the names of `scoring` on first use."""
    if name in _FROM_SCORING:
        from turncoat import scoring

        return getattr(scoring, name)
    raise AttributeError(f"module 'turncoat' has no attribute {name!r}")


__all__ = ["BundleError", "ConfigError", "DataError", "NotFittedError", "TurncoatError"]
__all__ += ["Detector", "DetectorState", "Panel", "load", "load_model"]
__all__ += ["BaumWelchHMM", "Encoder", "NeuralVariationalHMM", "VariationalHMM"]
__all__ += ["Anchors", "ContinuousHMMParams", "ContinuousVariationalParams", "HMMParams", "Prior"]
__all__ += ["VariationalParams", "align_states"]
__all__ += ["EmptyStateWarning", "FitReport", "Posteriors", "RestartReport"]
