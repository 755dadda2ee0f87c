"""Give a release its address: ``python .ci/address.py https://host/owner/name/blob/v1.2.3``.

Links and pictures of README lead into the repository, and an index of packages shows README without
it. A release's workflow knows where the repository is; this writes the address into README's links
and into the metadata of the project and of its crates, in the runner's copy alone.
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


def with_repository(workspace: str, address: str) -> str:
    """Return the text of the workspace's Cargo.toml with the repository of all crates."""
    repository = address.partition("/blob/")[0]
    table = f'[workspace.package]\nrepository = "{repository}"\n'
    return workspace.replace("[workspace.package]\n", table, 1)


def in_repository(crate: str) -> str:
    """Return the text of a crate's Cargo.toml, which takes the repository of the workspace."""
    license_line = "license.workspace = true\n"
    return crate.replace(license_line, f"{license_line}repository.workspace = true\n", 1)


def main() -> None:
    """Write the address of the command line into README.md, pyproject.toml and Cargo.toml."""
    address = sys.argv[1].rstrip("/")
    if not re.fullmatch(r"https://[^/\s]+/[^/\s]+/[^/\s]+/blob/\S+", address):
        raise SystemExit(f"{address}: not an address such as https://host/owner/name/blob/v1.2.3")
    readme = ROOT / "README.md"
    readme.write_text(absolute_links(readme.read_text(), address))
    pyproject = ROOT / "pyproject.toml"
    pyproject.write_text(with_urls(pyproject.read_text(), address))
    workspace = ROOT / "Cargo.toml"
    workspace.write_text(with_repository(workspace.read_text(), address))
    for crate in sorted(ROOT.glob("rust/*/Cargo.toml")):
        crate.write_text(in_repository(crate.read_text()))


if __name__ == "__main__":
    main()
