"""Epsilons of other tools' own accountants, for ``tests/oracles/oracles-other-tools.json``.

    python tests/helpers/other_tools.py FOLDER > tests/oracles/oracles-other-tools.json

FOLDER holds the unpacked wheels of opacus 1.6.0, tensorflow-privacy 0.9.0 and pfl 0.6.0, without
their dependencies: only their accountants are imported, which need NumPy, SciPy and dp-accounting.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

Numbers = dict[str, Any]


def bare_package(name: str, folder: Path) -> None:
    """Make a package whose own __init__ is not run: it would import a framework."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder / name.replace(".", "/"))]
    sys.modules[name] = package


def poisson_event(rate: float, noise_multiplier: float, count: int) -> dp_accounting.DpEvent:
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    sampled = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    return dp_accounting.SelfComposedDpEvent(sampled, count)


def by_dp_accounting(rate: float, noise_multiplier: float, count: int, delta: float) -> Numbers:
    """Return the epsilons of dp-accounting."""
    event = poisson_event(rate, noise_multiplier, count)
    return {
        "dp-accounting PLD": PLDAccountant().compose(event).get_epsilon(delta),
        "dp-accounting RDP": RdpAccountant().compose(event).get_epsilon(delta),
    }


def opacus(folder: Path) -> Callable[[Numbers], Numbers]:
    bare_package("opacus", folder)
    bare_package("opacus.accountants", folder)
    optimizers = types.ModuleType("opacus.optimizers")
    optimizers.DPOptimizer = object  # type: ignore[attr-defined]
    sys.modules["opacus.optimizers"] = optimizers
    prv = importlib.import_module("opacus.accountants.prv").PRVAccountant
    rdp = importlib.import_module("opacus.accountants.rdp").RDPAccountant

    def epsilons(setting: Numbers) -> Numbers:
        loader = math.ceil(setting["records"] / setting["batch_size"])
        history = [(setting["noise_multiplier"], 1 / loader, setting["epochs"] * loader)]
        epsilon_by_tool = {}
        for name, kind, options in (
            ("Opacus PRV", prv, {}),  # an upper bound, with an error of 0.01 by default
            ("Opacus PRV, eps_error=0.001", prv, {"eps_error": 0.001}),
            ("Opacus RDP", rdp, {}),
        ):
            accountant = kind()
            accountant.history = list(history)
            epsilon_by_tool[name] = float(accountant.get_epsilon(setting["delta"], **options))
        (noise, rate, steps) = history[0]
        return epsilon_by_tool | by_dp_accounting(rate, noise, steps, setting["delta"])

    return epsilons


def tensorflow_privacy(folder: Path) -> Callable[[Numbers], Numbers]:
    for name in ("", ".privacy", ".privacy.analysis"):
        bare_package(f"tensorflow_privacy{name}", folder)
    library = importlib.import_module(
        "tensorflow_privacy.privacy.analysis.compute_dp_sgd_privacy_lib"
    )

    def epsilons(setting: Numbers) -> Numbers:
        rate = setting["batch_size"] / setting["records"]
        steps = math.ceil(setting["epochs"] / rate)
        epsilon_by_tool = {}
        for kind in ("RDP", "PLD"):
            epsilon_by_tool[f"TensorFlow Privacy {kind}"] = library._compute_dp_sgd_example_privacy(
                setting["epochs"],
                setting["noise_multiplier"],
                setting["delta"],
                used_microbatching=False,
                poisson_subsampling_probability=rate,
                accountant_type=getattr(library.AccountantType, kind),
            )
        return epsilon_by_tool | by_dp_accounting(
            rate, setting["noise_multiplier"], steps, setting["delta"]
        )

    return epsilons


def pfl(folder: Path) -> Callable[[Numbers], Numbers]:
    for name in ("pfl", "pfl.privacy"):
        bare_package(name, folder)
    unused = types.ModuleType("prv_accountant")
    for name in ("LaplaceMechanism", "PoissonSubsampledGaussianMechanism", "PRVAccountant"):
        setattr(unused, name, object)
    sys.modules["prv_accountant"] = unused
    kind = importlib.import_module("pfl.privacy.privacy_accountant").PLDPrivacyAccountant

    def epsilons(setting: Numbers) -> Numbers:
        rate = setting["cohort"] / setting["clients"]
        accountant = kind(
            num_compositions=setting["rounds"],
            sampling_probability=rate,
            mechanism="gaussian",
            delta=setting["delta"],
            noise_parameter=setting["noise_multiplier"],
        )
        dp = by_dp_accounting(
            rate, setting["noise_multiplier"], setting["rounds"], setting["delta"]
        )
        return {"pfl PLD": float(accountant.epsilon)} | dp

    return epsilons


def flower(setting: Numbers) -> Numbers:
    """Flower has no accountant: its noise multiplier in those of dp-accounting."""
    rate = setting["cohort"] / setting["clients"]
    return by_dp_accounting(rate, setting["noise_multiplier"], setting["rounds"], setting["delta"])


def sgd(records: int, batch_size: int, epochs: int, noise: float, delta: float) -> Numbers:
    return {
        "records": records,
        "batch_size": batch_size,
        "epochs": epochs,
        "noise_multiplier": noise,
        "delta": delta,
    }


def clients(clients: int, cohort: int, rounds: int, noise: float, delta: float) -> Numbers:
    return {
        "clients": clients,
        "cohort": cohort,
        "rounds": rounds,
        "noise_multiplier": noise,
        "delta": delta,
    }


CASES: dict[str, list[tuple[str, Numbers]]] = {
    "opacus": [
        ("examples/mnist.py with its defaults", sgd(60000, 64, 10, 1.0, 1e-5)),
        ("large batches", sgd(50000, 2000, 90, 1.5, 1e-5)),
        ("small noise", sgd(25000, 64, 10, 0.56, 1e-5)),
        ("last batch not full", sgd(60000, 256, 60, 1.1, 1e-5)),
    ],
    "tensorflow-privacy": [
        ("tutorials/mnist_dpsgd_tutorial.py with its defaults", sgd(60000, 256, 60, 1.12, 1e-5)),
        ("more noise", sgd(60000, 256, 30, 1.3, 1e-5)),
    ],
    "flower": [
        ("fixed clipping at the server, as recommended", clients(1000, 50, 200, 1.1, 1e-5)),
        ("small noise multiplier", clients(100, 10, 30, 0.5, 1e-3)),
    ],
    "pfl": [
        ("a million clients, cohorts of 1,000", clients(1000000, 1000, 1500, 0.75, 1e-6)),
        ("a million clients, cohorts of 5,000", clients(1000000, 5000, 2000, 1.0, 1e-6)),
    ],
}


def main(folder: Path) -> None:
    epsilons: dict[str, Callable[[Numbers], Numbers]] = {
        "opacus": opacus(folder),
        "tensorflow-privacy": tensorflow_privacy(folder),
        "flower": flower,
        "pfl": pfl(folder),
    }
    cases = [
        {"tool": tool, "example": name, "given": setting, "epsilon": epsilons[tool](setting)}
        for tool, listed in CASES.items()
        for name, setting in listed
    ]
    versions = {"opacus": "1.6.0", "tensorflow-privacy": "0.9.0", "pfl": "0.6.0"}
    versions["dp-accounting"] = importlib.import_module("importlib.metadata").version(
        "dp-accounting"
    )
    command = "python tests/helpers/other_tools.py FOLDER"
    print(json.dumps({"how": command, "versions": versions, "cases": cases}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
