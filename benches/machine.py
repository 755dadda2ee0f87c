"""The machine of a measurement: processor, system and versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

FLAGS = ("avx2", "fma", "aes", "vaes", "avx512f", "avx512dq")
PACKAGES = (
    *("numpy", "scipy", "jax", "torch", "opendp", "dp-accounting"),
    *("gossipy-dfl", "pfl", "flwr", "ray"),
)


def description() -> dict[str, object]:
    """Return processor, system and versions."""
    processor = _processor()
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "processor": processor.get("model name", platform.processor()),
        "family": f"{processor.get('cpu family', '?')}/{processor.get('model', '?')}",
        "cores": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in processor.get("flags", "").split()],
        "load": [round(load, 1) for load in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name, version in versions.items() if version},
    }


def _processor() -> dict[str, str]:
    """Return the first processor of Linux's list; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text().split("\n\n")[0].splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
