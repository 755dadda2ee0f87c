"""Differentially private learning among many nodes."""

from dpmesh._core import __version__

__all__ = ["__version__"]
