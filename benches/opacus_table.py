"""A private classifier of a table beside Opacus: ``python -m benches.opacus_table``.

Covertype, 54 columns and seven classes: 30,000 records to learn from and 10,000 to test on, in each
of five splits, at epsilon 1 and delta 1e-5. Both learn a softmax regression of the same features:
the encoded columns as they are, and the default of `PrivateClassifier`.

- dpmesh: four sites by secure aggregation, where one site may collude; neighbours differ in the
  value of one record, which takes twice the noise.
- Opacus: all records in one place, DP-SGD by Poisson sampling; neighbours have one record more or
  less. Epochs and learning rate are the best of a grid on 10,000 other records of the table.

Processor time on one thread, from the raw table to the model; imports are not counted. Results go
to ``docs/results/opacus-table.csv``, and as text beside it. Needs torch, Opacus and `DPMESH_DATA`.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmesh as dm
from dpmesh.data import covertype
from dpmesh.tables import Columns
from dpmesh_papers._scaffold import interval
from dpmesh_papers.public_tables import COVERTYPE_RANGES, wilderness_areas
from dpmesh_papers.studies.results import markdown_table, write_rows

EPSILON = 1.0
DELTA = 1e-5
SPLITS = 5
TRAINING = 30_000
"""Records to learn from in a split."""
TEST = 10_000
"""Records to test on in a split."""
HELD_OUT = TEST / (TRAINING + TEST)
CLASSES = 7
FEATURES = ("columns", "hats+cosines")

# of Opacus's runs
EPOCHS = (5, 10, 20)
LEARNING_RATES = (2.0, 4.0, 8.0)
BATCH = 1_024
MOMENTUM = 0.9

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Records:
    """Raw columns of covertype, with the class and the wilderness area of each record."""

    x: Floats
    y: npt.NDArray[np.int64]
    areas: npt.NDArray[np.int64]

    def take(self, chosen: npt.NDArray[np.int64]) -> Records:
        """Return the records at these indices."""
        return Records(x=self.x[chosen], y=self.y[chosen], areas=self.areas[chosen])


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Epochs and learning rate of DP-SGD."""

    epochs: int
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Accuracy on the test records, in percent, and processor time in seconds."""

    accuracy: float
    seconds: float


def by_dpmesh(training: Records, test: Records, features: str, seed: int) -> Fit:
    """Fit by secure aggregation of four sites."""
    begin = time.process_time()
    model = dm.sklearn.PrivateClassifier(
        epsilon=EPSILON, delta=DELTA, ranges=COVERTYPE_RANGES, features=features, random_state=seed
    )
    model.fit(training.x, training.y, groups=training.areas)
    seconds = time.process_time() - begin
    return Fit(accuracy=100 * model.score(test.x, test.y), seconds=seconds)


def encoded(x: Floats, features: str) -> torch.Tensor:
    """Return the features of raw columns, of norm 1."""
    columns = Columns.of(COVERTYPE_RANGES, range(x.shape[1]), features=features)
    return torch.tensor(columns.encode([*x.T]).features, dtype=torch.float32)


def by_opacus(training: Records, test: Records, features: str, setting: Setting, seed: int) -> Fit:
    """Fit by DP-SGD in one place."""
    begin = time.process_time()
    torch.manual_seed(seed)
    x = encoded(training.x, features)
    network = nn.Linear(x.shape[1], CLASSES, bias=False)
    nn.init.zeros_(network.weight)
    network, optimizer, batches = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=network,
        optimizer=torch.optim.SGD(
            network.parameters(), lr=setting.learning_rate, momentum=MOMENTUM
        ),
        data_loader=DataLoader(TensorDataset(x, torch.tensor(training.y)), batch_size=BATCH),
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=setting.epochs,
        max_grad_norm=1.0,
    )
    for _ in range(setting.epochs):
        for features_of_batch, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(features_of_batch), labels).backward()
            optimizer.step()
    seconds = time.process_time() - begin
    with torch.no_grad():
        predicted = network(encoded(test.x, features)).argmax(dim=1).numpy()
    return Fit(accuracy=100 * float(np.mean(predicted == test.y)), seconds=seconds)


def main() -> None:
    """Choose Opacus's setting on other records, then run both on all splits."""
    torch.set_num_threads(1)
    dm.kernels.set_threads(1)
    warnings.simplefilter("ignore")
    source = covertype(CLASSES)
    x = np.asarray(source.features)
    whole = Records(x=x, y=np.asarray(source.labels), areas=wilderness_areas(x))
    draw = np.random.default_rng(0)
    order = draw.permutation(len(x))
    for_choice, compared = whole.take(order[:TEST]), whole.take(order[TEST:])
    splits = []
    for _ in range(SPLITS):
        order = draw.permutation(len(compared.y))
        training, test = order[:TRAINING], order[TRAINING:][:TEST]
        splits.append((compared.take(training), compared.take(test)))
    first_training = splits[0][0]

    rows = []
    for features in FEATURES:
        settings = [
            Setting(epochs=epochs, learning_rate=rate)
            for epochs, rate in product(EPOCHS, LEARNING_RATES)
        ]
        trials = {
            setting: by_opacus(first_training, for_choice, features, setting, 0)
            for setting in settings
        }
        best = max(trials, key=lambda setting: trials[setting].accuracy)
        ours = [by_dpmesh(*split, features, seed) for seed, split in enumerate(splits)]
        theirs = [by_opacus(*split, features, best, seed) for seed, split in enumerate(splits)]
        chosen = f"{best.epochs} epochs, learning rate {best.learning_rate:g}"
        for library, fits, setting in (("dpmesh", ours, "defaults"), ("Opacus", theirs, chosen)):
            accuracies = [fit.accuracy for fit in fits]
            row = {
                "features": features,
                "library": library,
                "setting": setting,
                "accuracy": f"{np.mean(accuracies):.1f}",
                "interval": f"{interval(accuracies, held_out=HELD_OUT):.1f}",
                "seconds": f"{np.median([fit.seconds for fit in fits]):.2f}",
            }
            print(row, flush=True)
            rows.append(row)
    write_rows("opacus-table", rows, as_text(rows))


def as_text(rows: list[dict[str, str]]) -> str:
    """Return the results as a table in Markdown."""
    head = ["features", "library", "setting", "accuracy (%)", "processor seconds"]
    lines = []
    for row in rows:
        accuracy = f"{row['accuracy']} ± {row['interval']}"
        lines.append([row["features"], row["library"], row["setting"], accuracy, row["seconds"]])
    return markdown_table(head, lines)


if __name__ == "__main__":
    main()
