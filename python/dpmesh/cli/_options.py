"""Options that several commands share, and the panels of the help that group options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

DATA = "Data"
TEXT_FILES = "Text files"
QUESTIONS = "Questions"
PRIVACY = "Privacy"
LEARNING = "Learning"
OUTPUT = "Output"
CONNECTION = "Connection"
OPERATION = "Operation"
CLAIM = "Claim"
AUDIT = "Audit"
ADVERSARY = "Adversary's view"
ALGORITHM = "Algorithm"

_SEPARATOR = "Character between two values of a text file (default: as the header line shows)."
_DECIMAL = "Decimal mark (default: a comma if a semicolon separates values, else a point)."
_ENCODING = "Encoding of text files, such as latin-1 (default: as the header line shows)."
_HEADER = "Read the names of columns from the first line; without a header they are x0, x1, .."
_ESCAPE = "Escape character, such as a backslash before a quotation mark (default: none)."
_MULTILINE = "Let quoted values span lines. For files that a program wrote."
_SKIP_EMPTY = "Leave out empty lines of text files (default: an error)."
_DROP = "Leave out records without a label or a site."
_MECHANISM = (
    "BetweenPartners: sites gossip, and add pairwise-cancelling noise. The epsilon then holds "
    "against all parties except link partners (default: independent noise)."
)
_BUDGET = "Party's folder, made by dpmesh contract keys, whose budget is charged."
_COLLUDING = "Number of sites that may collude, under secure aggregation or --mechanism."
_METHOD = "Learn by secure aggregation, or by gossip (default: secure from 3 sites on)."
_DATASETS = "Folder with a subfolder for each data set: mnist, rcv1, .."
_SITE = "Column that names the site (default: each file is one site)."
_RANGES = "TOML file with the public ranges of the columns and the label."

Separator = Annotated[str | None, typer.Option(help=_SEPARATOR, rich_help_panel=TEXT_FILES)]
Decimal = Annotated[
    Literal[".", ","] | None, typer.Option(help=_DECIMAL, rich_help_panel=TEXT_FILES)
]
Encoding = Annotated[str | None, typer.Option(help=_ENCODING, rich_help_panel=TEXT_FILES)]
Header = Annotated[
    bool | None, typer.Option("--header/--no-header", help=_HEADER, rich_help_panel=TEXT_FILES)
]
Escape = Annotated[str | None, typer.Option(help=_ESCAPE, rich_help_panel=TEXT_FILES)]
Multiline = Annotated[
    bool, typer.Option("--multiline", help=_MULTILINE, rich_help_panel=TEXT_FILES)
]
SkipEmptyLines = Annotated[
    bool, typer.Option("--skip-empty-lines", help=_SKIP_EMPTY, rich_help_panel=TEXT_FILES)
]
DropMissingLabels = Annotated[
    bool, typer.Option("--drop-missing-labels", help=_DROP, rich_help_panel=DATA)
]
Mechanism = Annotated[
    Literal["BetweenPartners"] | None,
    typer.Option("--mechanism", help=_MECHANISM, rich_help_panel=PRIVACY),
]
BudgetFolder = Annotated[
    Path | None, typer.Option("--folder", help=_BUDGET, rich_help_panel=PRIVACY)
]
Delta = Annotated[float, typer.Option(help="Delta of the guarantee.", rich_help_panel=PRIVACY)]
Colluding = Annotated[int, typer.Option(min=0, help=_COLLUDING, rich_help_panel=PRIVACY)]
Method = Annotated[
    Literal["secure", "gossip"] | None, typer.Option(help=_METHOD, rich_help_panel=LEARNING)
]
DataFolder = Annotated[
    Path | None,
    typer.Option("--datasets", envvar="DPMESH_DATA", help=_DATASETS, rich_help_panel=DATA),
]
Site = Annotated[str | None, typer.Option(help=_SITE, rich_help_panel=DATA)]


def import_from_this_folder(module: str | None) -> str | None:
    """Add the working directory to the import path if a module is named; callback of --module."""
    if module is not None:
        sys.path.insert(0, "")
    return module


Ranges = Annotated[Path, typer.Option(help=_RANGES, rich_help_panel=DATA)]
