"""Entry of the ``dpmesh`` command and of ``python -m dpmesh``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or report which extra it needs."""
    try:
        from dpmesh.cli import app
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.exit("the command line needs its extra: pip install typer")
    except KeyboardInterrupt:
        sys.exit(130)
    app()


if __name__ == "__main__":
    main()
