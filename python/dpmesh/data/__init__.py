"""Records to learn from: datasets, loaders of standard formats, partitions among nodes."""

from dpmesh.data.dataset import Dataset

__all__ = ["Dataset"]
