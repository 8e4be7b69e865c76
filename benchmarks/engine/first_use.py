"""Start-up cost of a new process. Runs as its own module, so that nothing is imported before."""

from __future__ import annotations

import json
import sys
import time


def measure() -> dict[str, float]:
    """Seconds to import Turncoat, then to fit a small panel in both tiers and take a live step."""
    began = time.perf_counter()
    import turncoat

    imported = time.perf_counter()
    from benchmarks.engine.workloads import mixed

    workload = mixed(2_000, 3)
    panel = turncoat.Panel.from_arrays(
        workload.continuous,
        workload.categorical,
        workload.lengths,
        n_categories=workload.n_categories,
    )
    prepared = time.perf_counter()
    model = turncoat.BaumWelchHMM(3, n_restarts=1, max_iter=2, progress=False).fit(panel)
    turncoat.VariationalHMM(3, n_restarts=1, max_iter=2, progress=False).fit(panel)
    model.step(None, panel.continuous[0], panel.categorical[0])
    return {
        "import_seconds": imported - began,
        "first_call_seconds": time.perf_counter() - prepared,
    }


if __name__ == "__main__":
    with open(sys.argv[1], "w") as output:
        json.dump(measure(), output)
