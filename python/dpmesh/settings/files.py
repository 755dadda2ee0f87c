"""Experiment files and contracts as `Settings`: tables of TOML, and errors that name file and line.

`read` reads a file. `Settings.make` builds the object that a table describes (a *part*, see
`dpmesh.settings.parts`); `Settings.convert` checks one value against a type hint.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import dpmesh.settings.parts as parts
from dpmesh._files import read_toml
from dpmesh._networks import imported
from dpmesh._untrusted import LONGEST_TEXT, shortened
from dpmesh._validate import fail, nearest
from dpmesh.keys import Key
from dpmesh.noise.independent import is_kind, unscaled
from dpmesh.settings.parts import Field, Kinds, Maker, alternatives_of, classes_for, part_fields
from dpmesh.topology import Topology, edge_dropping

_MISFIT = object()
"""Result of a conversion of a value that has another type."""

_TYPE_WORDS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): '"none"',
}

_HEADER = re.compile(r"\s*\[+([^\]=]+)\]")
_ASSIGNMENT = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[\w-]+)*)\s*=""")

TABLES_WITH_DEFAULT_KIND = ("problem",)
"""Tables whose `kind` may be left out, though they have several: the first one is the default."""

EXTRA_KEYS = {"topology": ("keep",)}
"""Keys of a table that are no parameter of a maker: `Settings.graph` uses them itself."""


def _none_filled(_key: str, _table: Mapping[str, object], _maker: Maker) -> dict[str, object]:
    """Return no parameters; the default of `Settings.filled`."""
    return {}


@dataclass(frozen=True)
class Settings:
    """Content of an experiment file or a contract, with the line numbers of its keys.

    Parameters
    ----------
    content
        Tables of the file, by name, as `tomllib` returns them.
    source
        Name of the file, for errors.
    lines
        Line numbers, from 1 on, by key, such as ``"algorithm.epsilon"``.
    module
        Name of a user's module: a `kind` can name its classes and functions, too.
    filled
        Function of an inner table's key, content and maker. It returns the maker's parameters that
        follow from other tables, by name.
    installed
        If true, a `kind` can also name a class of the distribution's entry points. Experiment files
        allow it; contracts never do, as they must mean the same whatever a party has installed.
    """

    content: dict[str, Any]
    source: str = "settings"
    lines: Mapping[str, int] = field(default_factory=dict)
    module: str | None = None
    filled: Callable[[str, dict[str, Any], Maker], Mapping[str, object]] = _none_filled
    installed: bool = False

    def error(self, key: str, problem: str) -> ValueError:
        """Return an error at a key; a missing key has the line of its table."""
        line = self._line_of(key)
        place = self.source
        if line is not None:
            place += f", line {line}"
        return ValueError(f"{place}: {shortened(key)}: {shortened(problem, LONGEST_TEXT)}")

    def _line_of(self, key: str) -> int | None:
        """Return the line of a key, or of the innermost table around it; None if it has none."""
        path = re.sub(r"\[\d+\]", "", key)  # items of lists have no line
        candidates = []
        if path == "run.seed":
            candidates.append("sweep.seeds")
        while path:
            candidates += [f"sweep.{path}", path]
            path = path.rpartition(".")[0]
        for candidate in candidates:
            if candidate in self.lines:
                return self.lines[candidate]
        return None

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise the error of a key."""
        raise self.error(key, problem)

    def table(self, name: str) -> dict[str, Any]:
        """Return a table, empty if there is none."""
        table = self.content.get(name, {})
        if not isinstance(table, dict):
            self.fail(name, f"wanted a table [{name}], got {table!r}")
        return table

    def replaced(self, changes: Mapping[str, object]) -> Settings:
        """Return the settings with other values, by key, as for a cell of a sweep.

        The value "none" of a table removes the table.
        """
        content = deepcopy(self.content)
        for key, value in changes.items():
            *tables, name = key.split(".")
            if not tables and value == "none":
                content.pop(name, None)
                continue
            table = content
            for depth, table_name in enumerate(tables, 1):
                table = table.setdefault(table_name, {})
                if not isinstance(table, dict):
                    path = ".".join(tables[:depth])
                    self.fail(path, f"wanted a table, of which {key} is swept, got {table!r}")
            table[name] = deepcopy(value)  # another change may set a key within it
        return replace(self, content=content)

    def known(self, path: str, table: Mapping[str, object], names: Collection[str]) -> None:
        """Fail at a key of a table that is not one of these names."""
        for name in table:
            if name not in names:
                key = f"{path}.{name}" if path else name
                choices = ", ".join(names)
                self.fail(key, f"wanted one of {choices}, got {name}{nearest(name, names)}")

    def arguments(
        self, path: str, table: Mapping[str, object], fields: Mapping[str, Field], kind: str = ""
    ) -> dict[str, Any]:
        """Return the values of a table, converted to the types of the fields.

        Parameters
        ----------
        path
            Key of the table, for errors.
        table
            Content of the table, without its kind.
        fields
            Fields of the part, by name.
        kind
            Name of the part, for errors.

        Raises
        ------
        ValueError
            If a key is unknown, a required one is missing, or a value has another type.
        """
        extra_names = EXTRA_KEYS.get(path, ())
        self.known(path, table, (*fields, *extra_names))
        for name, described in fields.items():
            if described.required and name not in table:
                expectation = "wanted a value"
                if kind:
                    expectation += f" for {kind}"
                self.fail(f"{path}.{name}", f"{expectation}: {described.text}")
        return {
            name: self.convert(f"{path}.{name}", value, fields[name].hint)
            for name, value in table.items()
        }

    def part(
        self, path: str, table: Mapping[str, object], kinds: Mapping[str, Maker]
    ) -> tuple[Maker, dict[str, Any]]:
        """Return the class or function that a table names, and its arguments from the table."""
        maker = self.maker(path, table, kinds)
        values = {name: value for name, value in table.items() if name != "kind"}
        kind = str(table.get("kind", ""))
        return maker, self.arguments(path, values, part_fields(maker), kind)

    def maker(self, path: str, table: Mapping[str, object], kinds: Mapping[str, Maker]) -> Maker:
        """Return the class or function that a table names.

        Without a `kind` it is the only one of `kinds`, or the first where the table has a default.
        """
        default = None
        if len(kinds) == 1 or path in TABLES_WITH_DEFAULT_KIND:
            default = next(iter(kinds))
        kind = table.get("kind", default)
        maker: Maker | None
        if isinstance(kind, str) and kind in kinds:
            maker = kinds[kind]
        else:
            maker = self._maker_of_module(path, kind)
        if maker is None:
            self._fail_at_kind(path, kind, kinds)
        if is_kind(maker):  # a class of mechanisms: the algorithm scales its noise
            return unscaled(maker)
        return maker

    def _fail_at_kind(self, path: str, kind: object, kinds: Mapping[str, Maker]) -> NoReturn:
        """Fail at a kind that is neither in the package nor in the user's module."""
        choices = ", ".join(kinds)
        if self.module is not None:
            choices += f", or one of {self.module}"
        got = "none"
        if kind is not None:
            got = shortened(repr(kind))
            if isinstance(kind, str):
                hint = nearest(kind, kinds)
                if not hint and self.module is None:
                    hint = "; for a class of your own in mine.py, add --module mine"
                got += hint
        self.fail(f"{path}.kind", f"wanted one of {choices}, got {got}")

    def _maker_of_module(self, path: str, kind: object) -> Maker | None:
        """Return the class or function of a name in the user's module; None if there is none.

        Fail if it requires a parameter that a file cannot state.
        """
        if self.module is None or not isinstance(kind, str):
            return None
        maker: object = getattr(import_module(self.module), kind, None)
        if not callable(maker):
            return None
        for name, parameter in inspect.signature(maker).parameters.items():
            is_known = (
                name in parts.DERIVED or name in parts.NODE_COUNTS or name in part_fields(maker)
            )
            if parameter.default is parameter.empty and not is_known:
                self.fail(f"{path}.kind", f"wanted a type that a file can give, got {kind}({name})")
        return maker

    def make(
        self, path: str, table: Mapping[str, object], kinds: Mapping[str, Maker], **derived: object
    ) -> Any:
        """Build the part that a table describes.

        Parameters
        ----------
        path, table
            Key and content of the table.
        kinds
            Classes and functions that the table can name, by name.
        derived
            Arguments from other tables. The maker gets those that are in its signature, unless the
            table states them.

        Raises
        ------
        ValueError
            If the table is invalid; the message names the file, the line and the key.
        """
        maker, arguments = self.part(path, table, kinds)
        parameters = inspect.signature(maker).parameters
        accepted = {name: value for name, value in derived.items() if name in parameters}
        return self.call(path, maker, **(accepted | arguments))

    def call(self, path: str, function: Maker, **arguments: object) -> Any:
        """Call a function of this package; its errors begin with the name of an argument.

        Raises
        ------
        ValueError
            The error of the function, with the file, the line and the key of the argument.
        """
        try:
            return function(**arguments)
        except ValueError as error:
            if str(error).startswith(self.source):  # an inner part's error names its key already
                raise
            argument, _, problem = str(error).partition(": ")
            key = self._key_of_argument(path, argument, inspect.signature(function).parameters)
            if key is None:
                raise ValueError(f"{self.source}: {error}") from error
            raise self.error(key, problem) from error

    def graph(self, nodes: int, key: Key) -> Topology:
        """Return the network of the table [topology]; random networks are drawn from `key`."""
        table = dict(self.table("topology"))
        kept_share = self.convert("topology.keep", table.pop("keep", 1.0), float)
        rows = table.get("rows")
        columns = table.get("columns")
        if type(rows) is int and type(columns) is int and rows * columns != nodes:
            expectation = f"wanted rows x columns = {nodes}, the nodes"
            self.fail("topology.rows", f"{expectation}, got {rows} x {columns}")
        kinds = parts.SECTIONS["topology"]
        graph: Topology = self.make("topology", table, kinds, nodes=nodes, key=key)
        if graph.nodes != nodes:
            self.fail("topology", f"wanted {nodes} nodes, got {graph.nodes}")
        if kept_share == 1:
            return graph
        dropping: Topology = self.call(
            "topology", edge_dropping, base=graph, keep=kept_share, key=key
        )
        return dropping

    def _key_of_argument(self, path: str, argument: str, parameters: Collection[str]) -> str | None:
        """Return the key of a wrong argument; None if it is unknown.

        It is in the table `path` if the called function has such a parameter; else in the only
        table that has such a key.
        """
        if argument in parts.SECTIONS:  # the argument is built from a whole table
            return argument
        if argument in parameters:
            return f"{path}.{argument}"
        tables = [
            name
            for name, table in self.content.items()
            if isinstance(table, dict) and argument in table
        ]
        if len(tables) != 1:
            return None
        return f"{tables[0]}.{argument}"

    def convert(self, key: str, value: object, hint: object) -> Any:
        """Return a value in one of the types that a key allows.

        Raises
        ------
        ValueError
            If the value has none of these types.
        """
        alternatives = alternatives_of(hint)
        kinds = {cls.__name__: cls for option in alternatives for cls in classes_for(option)}
        if isinstance(value, dict) and kinds:
            return self._made_of_table(key, value, alternatives, kinds)
        for alternative in alternatives:
            converted = self._converted(key, value, alternative)
            if converted is not _MISFIT:
                return converted
        plain_types = [option for option in alternatives if not classes_for(option)]
        descriptions = [_in_words(plain_type) for plain_type in plain_types]
        if kinds:
            descriptions.append(f"a table whose kind is one of {', '.join(kinds)}")
        literals = [name for option in alternatives for name in get_args(option)]
        problem = f"wanted {' or '.join(descriptions)}, got {value!r}{nearest(value, literals)}"
        raise self.error(key, problem)

    def _made_of_table(
        self, key: str, table: dict[str, object], alternatives: Collection[object], kinds: Kinds
    ) -> Any:
        """Build the object that an inner table describes, for a key of these alternative types."""
        if self.installed and table.get("kind") not in kinds:
            kinds = kinds | _installed_kinds(alternatives)
        maker = self.maker(key, table, kinds)
        return self.make(key, table, kinds, **self.filled(key, table, maker))

    def _converted(self, key: str, value: object, hint: object) -> object:
        """Return a value converted to one type; `_MISFIT` if the value has another type."""
        converted: object = _MISFIT
        if hint is type(None):
            if value == "none":
                converted = None
        elif hint is float:
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                converted = float(value)
        elif hint in (int, bool, str):
            if type(value) is hint:
                converted = value
        elif get_origin(hint) is Literal:
            if value in get_args(hint):
                converted = value
        elif isinstance(value, list) and get_args(hint):
            item_hint = get_args(hint)[0]
            items = [self.convert(f"{key}[{i}]", item, item_hint) for i, item in enumerate(value)]
            converted = tuple(items)
        return converted


def read(path: str | Path, module: str | None = None) -> Settings:
    """Read an experiment file or a contract in TOML.

    Parameters
    ----------
    path
        The file.
    module
        Name of a Python module to import. The file can name its classes and functions as `kind`.
        Type hints of their parameters define the values in the file. The experiment passes
        arguments for parameters named `nodes`, `key`, `dataset` and `generator`.

    Raises
    ------
    ValueError
        If the file is not TOML (the message names the line), or the module cannot be imported.
    OSError
        If the file cannot be read.
    """
    if module is not None and imported(module) is None:
        expected = "the name of one that can be imported, mine.py of this folder as mine"
        fail("module", expected, repr(module))
    content, text = read_toml(path)
    return Settings(content, str(path), _lines(text), module)


def _installed_kinds(alternatives: Collection[object]) -> Kinds:
    """Return the classes of entry points that implement one of the interfaces in these types."""
    candidates = [get_origin(option) or option for option in alternatives if classes_for(option)]
    interfaces = [candidate for candidate in candidates if candidate is not type]
    return {
        name: cls
        for name, cls in parts.installed_kinds().items()
        if any(_implements(cls, interface) for interface in interfaces)
    }


def _implements(cls: type, interface: object) -> bool:
    """Return True if a class has all public members of an interface."""
    return all(hasattr(cls, name) for name in vars(interface) if not name.startswith("_"))


def _lines(text: str) -> dict[str, int]:
    """Return the line number of each table, and of each key that begins a line."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        assignment = _ASSIGNMENT.match(line)
        if header:
            table = _without_quotes(header[1])
            lines.setdefault(table, number)
        elif assignment:
            key = _without_quotes(assignment[1])
            path = f"{table}.{key}" if table else key
            lines.setdefault(path, number)
    return lines


def _without_quotes(key: str) -> str:
    """Return a key of TOML without blanks and quotation marks."""
    return re.sub(r"[\s\"']", "", key)


def _in_words(hint: object) -> str:
    """Return a description of a type for errors."""
    if hint in _TYPE_WORDS:
        return _TYPE_WORDS[hint]
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    return "a list"
