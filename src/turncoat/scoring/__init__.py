"""From a belief to a calibrated score with its reasons: regimes, detectors, rankers, the saved bundle."""

from turncoat.scoring.bundle import load
from turncoat.scoring.detector import Detector
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.scores import Score, Scores
from turncoat.scoring.state import DetectorState
from turncoat.scoring.supervision import Anchoring

__all__ = ["Anchoring", "Detector", "DetectorState", "Regimes", "Score", "Scores", "load"]
