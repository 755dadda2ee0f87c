"""Files of settings and contracts as data: the parts that they can name, errors with the line."""

from dpmesh.settings.files import Settings, read

__all__ = ["Settings", "read"]
