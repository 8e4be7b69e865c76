"""From beliefs to calibrated scores with reasons: the detector, its calibration, saved bundles."""

from turncoat.scoring.calibration import Calibration
from turncoat.scoring.detector import Detector, load
from turncoat.scoring.live import DetectorState, LiveScorer
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.scores import Score, Scores
from turncoat.scoring.supervision import Anchoring

__all__ = ["Anchoring", "Calibration", "Detector", "DetectorState", "LiveScorer", "Regimes"]
__all__ += ["Score", "Scores", "load"]
