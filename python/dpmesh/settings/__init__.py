"""Files of settings and contracts as data: what they can name, and errors that name the line."""

from dpmesh.settings.files import Settings, read

__all__ = ["Settings", "read"]
