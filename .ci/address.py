"""Give a release its address: ``python .ci/address.py https://host/owner/name/blob/v1.2.3``.

Links and pictures of README lead into the repository, and an index of packages shows README without
it. A release's workflow knows where the repository is; this writes the address into README's links
and into the project's metadata, in the runner's copy alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def absolute_links(text: str, address: str) -> str:
    """Return a Markdown text whose relative links and pictures are absolute."""
    pictures = address.replace("/blob/", "/raw/")
    link = r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)\s]+)\)"

    def absolute(match: re.Match[str]) -> str:
        base = pictures if match[1] else address
        return f"{match[1]}[{match[2]}]({base}/{match[3]})"

    return re.sub(link, absolute, text)


def with_urls(pyproject: str, address: str) -> str:
    """Return the text of pyproject.toml with the project's addresses."""
    if re.search(r"^\[project\.urls\]", pyproject, re.M):
        return pyproject
    repository = address.partition("/blob/")[0]
    urls = {
        "Repository": repository,
        "Documentation": f"{address}/docs/index.md",
        "Changelog": f"{address}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    lines = [f'{name} = "{url}"' for name, url in urls.items()]
    table = "\n".join(["[project.urls]", *lines, "", ""])
    return pyproject.replace("[project.scripts]\n", f"{table}[project.scripts]\n", 1)


def main() -> None:
    """Write the address of the command line into README.md and pyproject.toml."""
    address = sys.argv[1].rstrip("/")
    if not re.fullmatch(r"https://[^/\s]+/[^/\s]+/[^/\s]+/blob/\S+", address):
        raise SystemExit(f"{address}: not an address such as https://host/owner/name/blob/v1.2.3")
    readme = ROOT / "README.md"
    readme.write_text(absolute_links(readme.read_text(), address))
    pyproject = ROOT / "pyproject.toml"
    pyproject.write_text(with_urls(pyproject.read_text(), address))


if __name__ == "__main__":
    main()
