"""
YAML with positions: every value remembers its file, line and column.

Differences to plain YAML, so that a file means the same to everyone who reads it: scalars follow
the YAML 1.2 core schema (``12:30`` and ``010`` are text), bare ``on``/``off``/``yes``/``no`` and
repeated keys are refused, ``${VAR}`` and ``${VAR:-default}`` are filled in from the environment
(``$${`` is a literal ``${``), and ``include:`` at the top joins files: maps join by key, lists
follow one another in the order of inclusion.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import yaml

from protocols.errors import ConfigError
from protocols.wording import printable

Key = str | int
KeyPath = tuple[Key, ...]

INCLUDE_DEPTH_MAX: Final = 8
"""Files that include files: deeper is a mistake."""

NODES_MAX: Final = 300_000
"""Values of a file, each as often as an alias repeats it: nine lines of aliases of aliases would
stand for more than there is memory. 50,000 users with their rights are fewer."""

NESTING_MAX: Final = 50
"""Maps and lists inside one another; the schema needs ten."""

TOO_DEEP: Final = f"more than {NESTING_MAX} maps and lists inside one another"

_LOADER: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_VARIABLE = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_V6_ADDRESS = re.compile(r"\[[0-9A-Fa-f:.]+(%\w+)?\]:\d+")
_KEPT = frozenset(("clientid", "username", "cert_common_name"))
"""``${clientid}`` and its like stand for a client's own names in rules, as in EMQX's; they are
filled in when a request is judged, never from the environment."""

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)$|0x[0-9a-fA-F]+$")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]+)?)$"  # no leading zeros: text
)
_WORDS: Final[Mapping[str, bool | None]] = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    "null": None,
    "Null": None,
    "NULL": None,
    "~": None,
    "": None,
}
_QUOTED: Final = ("'", '"', "|", ">")
_AMBIGUOUS: Final = frozenset({"on", "off", "yes", "no"})


class Position(NamedTuple):
    """Where a value or key stands; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass
class Document:
    """A tree of plain values and where each of them came from."""

    value: dict[str, Any] = field(default_factory=dict)
    values_at: dict[KeyPath, Position] = field(default_factory=dict)
    keys_at: dict[KeyPath, Position] = field(default_factory=dict)
    source: str = "(defaults)"
    """The file it was read from."""

    files: list[Path] = field(default_factory=list)
    """Every file that took part; what a reload watches."""

    def position(self, path: KeyPath, *, of_key: bool = False) -> Position:
        """The position of *path*, or of the nearest thing above it that is written down."""
        if of_key and path in self.keys_at:
            return self.keys_at[path]
        for end in range(len(path), -1, -1):
            if (found := self.values_at.get(path[:end])) is not None:
                return found
        return Position(self.source, 0, 0)

    def problem(self, path: KeyPath, text: str, *, of_key: bool = False) -> str:
        """``file:line:column key.path: text``."""
        return f"{self.position(path, of_key=of_key)} {show_path(path)}: {printable(text)}"

    def take(self, path: KeyPath, value: Any, origin: Position) -> None:
        """Put *value* (plain YAML data) at *path*, in place of what is there."""
        node: Any = self.value
        for key in path[:-1]:
            if isinstance(node, list) and isinstance(key, int) and key < len(node):
                node = node[key]
            elif isinstance(node, dict):
                if not isinstance(node.get(key), dict | list):
                    node[key] = {}
                node = node[key]
            else:
                raise ConfigError([f"{origin} {show_path(path)}: there is no such list entry"])
        last = path[-1]
        if isinstance(node, list) and not (isinstance(last, int) and last < len(node)):
            raise ConfigError([f"{origin} {show_path(path)}: there is no such list entry"])
        node[last] = value
        self._forget(path)
        self._remember(path, value, origin)

    def _forget(self, path: KeyPath) -> None:
        for table in (self.values_at, self.keys_at):
            for old in [old for old in table if old[: len(path)] == path]:
                del table[old]

    def _remember(self, path: KeyPath, value: Any, origin: Position) -> None:
        self.values_at[path] = self.keys_at[path] = origin
        if isinstance(value, dict):
            for key, item in value.items():
                self._remember((*path, key), item, origin)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self._remember((*path, index), item, origin)


def show_path(path: Iterable[Key]) -> str:
    """``routes[2].to[0].cluster``."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text or "(top)"


def load(
    path: Path | None, *, environ: Mapping[str, str] | None = None, text: str | None = None
) -> Document:
    """
    Read *path* and what it includes; without a path an empty document.

    Args:
        environ: where ``${VAR}`` comes from; the process environment if None.
        text: the contents, if they are not to be read from *path* (tests, ``config diff``).

    Raises:
        ConfigError: all syntax mistakes of all files.
    """
    document = Document()
    if path is None and text is None:
        return document
    reader = _Reader(document, os.environ if environ is None else environ)
    document.source = str(path or "(text)")
    reader.read(path or Path("(text)"), str(path or "(text)"), text=text)
    if reader.problems:
        raise ConfigError(reader.problems)
    return document


def parse_value(text: str) -> Any:
    """A YAML value as ``--set`` takes it, or ``[v6]:port``. Raises ValueError."""
    if _V6_ADDRESS.fullmatch(text):
        return text
    document = Document()
    reader = _Reader(document, os.environ)
    try:
        node = _compose(text)
    except yaml.YAMLError as error:
        raise ValueError(f"'{text}' is no YAML value") from error
    value = None if node is None else reader.construct(node, (), "--set")
    if reader.problems:
        raise ValueError(reader.problems[0].partition(": ")[2])
    return value


class _Reader:
    """Fills one document from one tree of files, collecting mistakes instead of stopping."""

    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self.document = document
        self.problems: list[str] = []
        self._environ = environ
        self._node_count = 0
        self._reading: list[Path] = []

    def read(self, path: Path, name: str, *, text: str | None = None) -> None:
        """Read one file into the document, then what it includes."""
        try:
            content = path.read_text(encoding="utf-8") if text is None else text
            node = _compose(content)
        except OSError as error:
            self.problems.append(f"{name}: cannot be read: {error.strerror}")
            return
        except UnicodeDecodeError:
            self.problems.append(f"{name}: is not UTF-8 text")
            return
        except yaml.YAMLError as error:
            self.problems.append(_syntax_problem(name, error))
            return
        self.document.files.append(path)
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode):
            self.problems.append(f"{name}:1:1 (top): a map of blocks is wanted")
            return
        self._reading.append(path.resolve())
        for item, where in self._merge_top(node, name):
            inner = path.parent / item
            if "\0" in item or not inner.is_file():
                self.problems.append(f"{where} include: there is no file {printable(item)}")
            elif inner.resolve() in self._reading:
                self.problems.append(f"{where} include: {item} includes itself")
            elif len(self._reading) > INCLUDE_DEPTH_MAX:
                self.problems.append(f"{where} include: more than {INCLUDE_DEPTH_MAX} files deep")
            else:
                self.read(inner, str(inner) if Path(name).parent != Path() else item)
        self._reading.pop()

    def construct(self, node: yaml.Node, path: KeyPath, name: str) -> Any:
        """
        Plain data for *node*; positions are noted under *path*. Raises ConfigError beyond the
        bounds of a file.
        """
        self._node_count += 1
        if self._node_count > NODES_MAX or len(path) > NESTING_MAX:
            bound = TOO_DEEP if len(path) > NESTING_MAX else f"more than {NODES_MAX} values"
            raise ConfigError([f"{_position(name, node)} {show_path(path[:2])}: {bound}"])
        self.document.values_at[path] = _position(name, node)
        if isinstance(node, yaml.MappingNode):
            result: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = self._key(key_node, path, name)
                if key in result:
                    self._add(name, key_node, (*path, key), "this key is there twice")
                    continue
                self.document.keys_at[(*path, key)] = _position(name, key_node)
                result[key] = self.construct(value_node, (*path, key), name)
            return result
        if isinstance(node, yaml.SequenceNode):
            return [
                self.construct(item, (*path, index), name) for index, item in enumerate(node.value)
            ]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, path, name)

    def _merge_top(self, node: yaml.MappingNode, name: str) -> list[tuple[str, Position]]:
        """Merge one file's blocks into the document; the files it includes, and where."""
        include: list[tuple[str, Position]] = []
        tree = self.document.value
        if () not in self.document.values_at:
            self.document.values_at[()] = _position(name, node)
        for key_node, value_node in node.value:
            key = self._key(key_node, (), name)
            present = tree.get(key)
            if key == "include":
                value = self.construct(value_node, ("include",), name)
                include += self._files(value, value_node, name)
            elif isinstance(present, list) and isinstance(value_node, yaml.SequenceNode):
                for item in value_node.value:
                    present.append(self.construct(item, (key, len(present)), name))
            elif isinstance(present, dict) and isinstance(value_node, yaml.MappingNode):
                self._merge_map(present, value_node, key, name)
            elif key in tree:
                first = self.document.position((key,))
                self._add(name, key_node, (key,), f"this block is already given at {first}")
            else:
                self.document.keys_at[(key,)] = _position(name, key_node)
                tree[key] = self.construct(value_node, (key,), name)
        return include

    def _files(self, value: Any, node: yaml.Node, name: str) -> list[tuple[str, Position]]:
        """What ``include`` names, one file or a list of them, and where."""
        if isinstance(value, str):
            return [(value, _position(name, node))]
        if value is None or (isinstance(value, list) and all(isinstance(x, str) for x in value)):
            at = self.document.values_at
            return [(file, at["include", index]) for index, file in enumerate(value or ())]
        self._add(name, node, ("include",), "should be a file or a list of files")
        return []

    def _merge_map(
        self, present: dict[str, Any], node: yaml.MappingNode, block: str, name: str
    ) -> None:
        for key_node, value_node in node.value:
            key = self._key(key_node, (block,), name)
            if key in present:
                first = self.document.position((block, key))
                self._add(name, key_node, (block, key), f"is already given at {first}")
                continue
            self.document.keys_at[(block, key)] = _position(name, key_node)
            present[key] = self.construct(value_node, (block, key), name)

    def _key(self, node: yaml.Node, path: KeyPath, name: str) -> str:
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
        self._add(name, node, path, "a key must be text")
        return "?"

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath, name: str) -> Any:
        text: str = node.value
        if "${" in text:
            text = _VARIABLE.sub(lambda found: self._variable(found, node, path, name), text)
        if node.style in _QUOTED:
            return text
        if text.lower() in _AMBIGUOUS:
            hint = "write true or false, or quote it if it is text"
            self._add(name, node, path, f"bare '{text}' means different things: {hint}")
            return None
        return resolve(text)

    def _variable(self, found: re.Match[str], node: yaml.Node, path: KeyPath, name: str) -> str:
        escaped, variable, default = found.groups()
        if escaped:
            return found.group(0)[1:]
        if variable in _KEPT and default is None:
            return found.group(0)
        value = self._environ.get(variable)
        if value is None and default is None:
            hint = f"write ${{{variable}:-default}} if it may be"
            self._add(name, node, path, f"environment variable {variable} is not set ({hint})")
        return value if value is not None else default or ""

    def _add(self, name: str, node: yaml.Node, path: KeyPath, text: str) -> None:
        self.problems.append(f"{_position(name, node)} {show_path(path)}: {text}")


def resolve(text: str) -> Any:
    """What a plain scalar means in the YAML 1.2 core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text):
        return int(text, 16 if text.startswith("0x") else 10)
    if _FLOAT.match(text):
        return float(text)
    return text


def _compose(text: str) -> yaml.Node | None:
    """
    The tree of *text*. What composes it in C takes the stack for each level and ends the process
    when there is no more, so the levels are counted first. Raises yaml.YAMLError.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > NESTING_MAX:
            mark = cast(yaml.Mark, event.start_mark)
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=mark)
    node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    return node


def _position(name: str, node: yaml.Node) -> Position:
    return Position(name, node.start_mark.line + 1, node.start_mark.column + 1)


def _syntax_problem(name: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or str(error)
    if mark is None:
        return f"{name}: {text}"
    return f"{name}:{mark.line + 1}:{mark.column + 1} (syntax): {text}"
