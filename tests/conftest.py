"""Settings for all tests; they must be made before a library starts OpenMP threads."""

from __future__ import annotations

import os

# Several test processes share the processors. XGBoost's threads would otherwise spin while they
# wait for each other, and a fit of one second takes twenty.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
