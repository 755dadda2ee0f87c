"""Records to learn from: datasets, loaders of standard formats, and partitions among nodes."""

from dpmesh.data.dataset import Dataset
from dpmesh.data.formats import read_idx, read_libsvm, read_mat
from dpmesh.data.loaders import breast_cancer, covertype, digits, from_sklearn, mnist, rcv1, svhn
from dpmesh.data.partition import by_user, dirichlet, iid, shards, train_test_split
from dpmesh.data.preprocessing import random_projection, scaled, unit_norm, with_constant
from dpmesh.data.scattering import scattering
from dpmesh.data.shakespeare import next_characters, shakespeare

__all__ = [
    "Dataset",
    "breast_cancer",
    "by_user",
    "covertype",
    "digits",
    "dirichlet",
    "from_sklearn",
    "iid",
    "mnist",
    "next_characters",
    "random_projection",
    "rcv1",
    "read_idx",
    "read_libsvm",
    "read_mat",
    "scaled",
    "scattering",
    "shakespeare",
    "shards",
    "svhn",
    "train_test_split",
    "unit_norm",
    "with_constant",
]
