"""Clocks and gauges.

Best of several, the matrix-multiplication rate, peak memory, and a description of the machine.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil
from threadpoolctl import threadpool_info

PACKAGES = (
    "numpy",
    "numba",
    "scipy",
    "scikit-learn",
    "polars",
    "pyarrow",
    "hmmlearn",
    "pomegranate",
    "torch",
    "dynamax",
    "jax",
)
_SGEMM_SIZE = 4096
_SETTLE_SECONDS = 0.25


def seconds_of(call: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def settle() -> None:
    """Wait until spinning threads of the previous library sleep, so the next pays nothing."""
    time.sleep(_SETTLE_SECONDS)


def best_of(repeats: int, call: Callable[[], object]) -> float:
    """Shortest of several calls: what the machine can do when nobody else is on it."""
    return min(seconds_of(call) for _ in range(repeats))


def sgemm_rate(repeats: int) -> float:
    """Best float32 matrix-multiplication rate of NumPy on all cores, in flops per second."""
    rng = np.random.default_rng(0)
    left, right = (
        rng.standard_normal((_SGEMM_SIZE, _SGEMM_SIZE), dtype=np.float32) for _ in range(2)
    )
    product = np.empty_like(left)
    return 2 * _SGEMM_SIZE**3 / best_of(repeats, lambda: np.matmul(left, right, out=product))


def peak_bytes() -> int:
    """Largest resident size of this process, without its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(
            next(
                line.split()[1]
                for line in status.read_text().splitlines()
                if line.startswith("VmHWM")
            )
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class LoadMeter:
    """How much of the machine went to anything but our child processes since the meter was made."""

    def __init__(self) -> None:
        """Starts metering."""
        self.began, self.busy, self.own = time.perf_counter(), _busy_seconds(), _children_seconds()

    def read(self) -> dict[str, float]:
        """Seconds passed, and the share of all processor time that others had."""
        wall = time.perf_counter() - self.began
        others = _busy_seconds() - self.busy - (_children_seconds() - self.own)
        return {"wall_seconds": wall, "other_load": max(others, 0.0) / wall / (os.cpu_count() or 1)}


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def describe_machine() -> dict[str, object]:
    """Processor, memory and versions; nothing that names the host or a path."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{_distribution()}, {platform.machine()}",
        "python": platform.python_version(),
        "blas": sorted(
            {_blas_name(library) for library in threadpool_info() if library["user_api"] == "blas"}
        ),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    wide = next(
        (name for name in ("avx512f", "avx2") if name in named.get("flags", "").split()), "no AVX"
    )
    return (
        f"{named.get('model name', 'unknown')} (family {named.get('cpu family', '?')}, model "
        f"{named.get('model', '?')}, {wide})"
    )


def _distribution() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())


def _blas_name(library: dict[str, object]) -> str:
    return (
        f"{library['internal_api']} {library['version']} "
        f"({library.get('architecture', 'unknown kernel')})"
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
