"""A file of settings, and errors that name the file, the line and the key."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import dpmesh.settings.parts as parts
from dpmesh._files import read_toml
from dpmesh._networks import imported
from dpmesh._validate import fail, nearest
from dpmesh.keys import Key
from dpmesh.settings.parts import Entry, Maker, entries, kinds_of, options_of
from dpmesh.topology import Topology, edge_dropping

_MISFIT = object()

OF_DEFAULT_KIND = ("problem",)
"""Tables without a kind that are of the first one."""

BESIDE = {"topology": ("keep",)}
"""Keys of a table that its parts do not know, and that the experiment itself uses."""


@dataclass(frozen=True)
class Settings:
    """The content of a file, with the lines of its keys.

    Parameters
    ----------
    content
        Tables within tables, as TOML has them.
    source
        Its name in errors.
    lines
        By key, such as ``"algorithm.epsilon"``.
    module
        A module of the user's: its classes and functions are parts, too, that a `kind` can name.
    filled
        Parameters of tables within tables that other tables determine, such as the topology.
    installed
        Whether a `kind` can also name a class of the distribution's entry points: so in experiment
        files, and never in contracts, which mean the same whatever a party has installed.
    """

    content: dict[str, Any]
    source: str = "settings"
    lines: Mapping[str, int] = field(default_factory=dict)
    module: str | None = None
    filled: Mapping[str, Any] = field(default_factory=dict)
    installed: bool = False

    def error(self, key: str, problem: str) -> ValueError:
        """Return the error of a key, or of the table that it is missing from."""
        known = re.sub(r"\[\d+\]", "", key)
        places = ["sweep.seeds"] if known == "run.seed" else []
        while known:
            places += [f"sweep.{known}", known]
            known = known.rpartition(".")[0]
        lines = [self.lines[place] for place in places if place in self.lines]
        line = f", line {lines[0]}" if lines else ""
        return ValueError(f"{self.source}{line}: {key}: {problem}")

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise that error."""
        raise self.error(key, problem)

    def table(self, name: str) -> dict[str, Any]:
        """Return a table, empty if there is none."""
        value = self.content.get(name, {})
        if not isinstance(value, dict):
            self.fail(name, f"wanted a table [{name}], got {value!r}")
        return value

    def replaced(self, changes: Mapping[str, Any]) -> Settings:
        """Return the settings with other values, by key: a cell of a sweep.

        The value "none" of a table leaves it out.
        """
        content = deepcopy(self.content)
        for key, value in changes.items():
            *tables, name = key.split(".")
            if not tables and value == "none":
                content.pop(name, None)
                continue
            table = content
            for i, part in enumerate(tables, 1):
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    path = ".".join(tables[:i])
                    self.fail(path, f"wanted a table, of which {key} is swept, got {table!r}")
            table[name] = deepcopy(value)  # whose keys others of the changes may set
        return replace(self, content=content)

    def known(self, path: str, table: Mapping[str, Any], names: Collection[str]) -> None:
        """Fail at a key of a table that is not one of these names."""
        for name in table:
            if name not in names:
                key = f"{path}.{name}" if path else name
                wanted = f"wanted one of {', '.join(names)}"
                self.fail(key, f"{wanted}, got {name}{nearest(name, names)}")

    def arguments(
        self, path: str, table: Mapping[str, Any], wanted: Mapping[str, Entry], kind: str = ""
    ) -> dict[str, Any]:
        """Return the values of a table's keys in the types that its part, a kind, needs."""
        self.known(path, table, (*wanted, *BESIDE.get(path, ())))
        for name, entry in wanted.items():
            if entry.required and name not in table:
                needed = f"wanted a value for {kind}" if kind else "wanted a value"
                self.fail(f"{path}.{name}", f"{needed}: {entry.text}")
        return {
            name: self.convert(f"{path}.{name}", value, wanted[name].hint)
            for name, value in table.items()
        }

    def part(
        self, path: str, table: Mapping[str, Any], kinds: Mapping[str, Maker]
    ) -> tuple[Maker, dict[str, Any]]:
        """Return which part a table describes, and the arguments that it gives."""
        maker = self.maker(path, table, kinds)
        rest = {name: value for name, value in table.items() if name != "kind"}
        return maker, self.arguments(path, rest, entries(maker), str(table.get("kind", "")))

    def maker(self, path: str, table: Mapping[str, Any], kinds: Mapping[str, Maker]) -> Maker:
        """Return which part a table describes; one of several kinds needs a name."""
        default = next(iter(kinds)) if len(kinds) == 1 or path in OF_DEFAULT_KIND else None
        kind = table.get("kind", default)
        known = isinstance(kind, str) and kind in kinds
        maker = kinds[kind] if known else self._own(path, kind)
        if maker is None:
            got = "none" if kind is None else f"{kind!r}{nearest(kind, kinds)}"
            own = "" if self.module is None else f", or one of {self.module}"
            wanted = f"wanted one of {', '.join(kinds)}{own}"
            self.fail(f"{path}.kind", f"{wanted}, got {got}")
        return maker

    def _own(self, path: str, kind: object) -> Maker | None:
        """Return what the user's module calls by this name, if it can be called."""
        if self.module is None or not isinstance(kind, str):
            return None
        found: object = getattr(import_module(self.module), kind, None)
        if not callable(found):
            return None
        for name, parameter in inspect.signature(found).parameters.items():
            known = name in parts.GIVEN or name in parts.NUMBERS or name in entries(found)
            if parameter.default is parameter.empty and not known:
                self.fail(f"{path}.kind", f"wanted a type that a file can give, got {kind}({name})")
        return found

    def make(
        self, path: str, table: Mapping[str, Any], kinds: Mapping[str, Maker], **given: Any
    ) -> Any:
        """Return the part that a table describes; from `given` it takes its own parameters."""
        maker, arguments = self.part(path, table, kinds)
        taken = inspect.signature(maker).parameters
        given = {name: value for name, value in given.items() if name in taken}
        return self.call(path, maker, **(given | arguments))

    def call(self, path: str, function: Maker, **arguments: Any) -> Any:
        """Call a function, whose errors begin with the name of an argument."""
        try:
            return function(**arguments)
        except ValueError as error:
            if str(error).startswith(self.source):  # of a part within
                raise
            name, _, problem = str(error).partition(": ")
            key = self._key(path, name, inspect.signature(function).parameters)
            if key is None:
                raise ValueError(f"{self.source}: {error}") from error
            raise self.error(key, problem) from error

    def graph(self, nodes: int, key: Key) -> Topology:
        """Return the network that the table [topology] describes, with random draws of this key."""
        table = dict(self.table("topology"))
        keep = self.convert("topology.keep", table.pop("keep", 1.0), float)
        rows, columns = table.get("rows"), table.get("columns")
        if type(rows) is type(columns) is int and rows * columns != nodes:  # before it is made
            wanted = f"wanted rows x columns = {nodes}, the nodes"
            self.fail("topology.rows", f"{wanted}, got {rows} x {columns}")
        kinds = parts.SECTIONS["topology"]
        graph: Topology = self.make("topology", table, kinds, nodes=nodes, key=key)
        if graph.nodes != nodes:
            self.fail("topology", f"wanted {nodes} nodes, got {graph.nodes}")
        if keep == 1:
            return graph
        dropping: Topology = self.call("topology", edge_dropping, base=graph, keep=keep, key=key)
        return dropping

    def _key(self, path: str, argument: str, arguments: Collection[str]) -> str | None:
        """Return the key behind a wrong argument: in `path`, or in the only table that has it."""
        if argument in parts.SECTIONS:  # made of a whole table
            return argument
        if argument in arguments:
            return f"{path}.{argument}"
        tables = [
            name
            for name, table in self.content.items()
            if isinstance(table, dict) and argument in table
        ]
        return f"{tables[0]}.{argument}" if len(tables) == 1 else None

    def convert(self, key: str, value: Any, hint: Any) -> Any:
        """Return a value in one of the types that a key allows."""
        options = options_of(hint)
        kinds = {cls.__name__: cls for option in options for cls in kinds_of(option)}
        if isinstance(value, dict) and kinds:
            if self.installed and value.get("kind") not in kinds:
                kinds |= _installed_kinds(options)
            names = parts.FILLED.get(self.maker(key, value, kinds), ())
            given = {name: self.filled[name] for name in names if name in self.filled}
            return self.make(key, value, kinds, **given)
        for option in options:
            converted = self._as(key, value, option)
            if converted is not _MISFIT:
                return converted
        wanted = [_in_words(option) for option in options if not kinds_of(option)]
        if kinds:
            wanted.append(f"a table whose kind is one of {', '.join(kinds)}")
        hint = nearest(value, [name for option in options for name in get_args(option)])
        raise self.error(key, f"wanted {' or '.join(wanted)}, got {value!r}{hint}")

    def _as(self, key: str, value: Any, hint: Any) -> Any:
        if hint is type(None):
            return None if value == "none" else _MISFIT
        if hint is float:
            fits = isinstance(value, (int, float)) and not isinstance(value, bool)
            return float(value) if fits else _MISFIT
        if hint in (int, bool, str):
            return value if type(value) is hint else _MISFIT
        if get_origin(hint) is Literal:
            return value if value in get_args(hint) else _MISFIT
        if isinstance(value, list) and get_args(hint):
            item = get_args(hint)[0]
            return tuple(self.convert(f"{key}[{i}]", v, item) for i, v in enumerate(value))
        return _MISFIT


def read(path: str | Path, module: str | None = None) -> Settings:
    """Read a TOML file.

    Parameters
    ----------
    path
        The file.
    module
        The name of a module of your own, which is imported: the file can name its classes and
        functions as `kind`. Types of their parameters define what the file may give; what the
        experiment has is given to parameters `nodes`, `key`, `dataset` and `generator`.

    Raises
    ------
    ValueError
        If it is not TOML (the message names the file, and the line), or there is no such module.
    OSError
        If it cannot be read.
    """
    if module is not None and imported(module) is None:
        fail("module", "the name of one that can be imported, such as mine", repr(module))
    content, text = read_toml(path)
    return Settings(content, str(path), _lines(text), module)


def _installed_kinds(options: Collection[Any]) -> dict[str, type]:
    """Return the classes of entry points that implement one of these interfaces, by name."""
    protocols = [get_origin(option) or option for option in options if kinds_of(option)]
    return {
        name: cls
        for name, cls in parts.installed_kinds().items()
        if any(_implements(cls, protocol) for protocol in protocols)
    }


def _implements(cls: type, protocol: type) -> bool:
    """Return whether a class has all public members of an interface."""
    return all(hasattr(cls, name) for name in vars(protocol) if not name.startswith("_"))


def _lines(text: str) -> dict[str, int]:
    """Return the line of each key at the start of a line, and of each table."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+([^\]=]+)\]", line):
            table = _plain(header[1])
            lines.setdefault(table, number)
        elif key := re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[\w-]+)*)\s*=""", line):
            lines.setdefault(".".join(filter(None, [table, _plain(key[1])])), number)
    return lines


def _plain(key: str) -> str:
    return re.sub(r"[\s\"']", "", key)


def _in_words(hint: Any) -> str:
    simple = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    if hint in simple:
        return simple[hint]
    if hint is type(None):
        return '"none"'
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    return "a list"
