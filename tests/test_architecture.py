"""The house as docs/architecture.md draws it: who imports whom, who touches the disk, the network, the clock and chance.

The document is read, not repeated: its fenced blocks are the tables, so the two cannot drift apart.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.access.settings_explained import EXPLAINED as ACCESS_EXPLAINED
from orbitmq.broker import settings as broker_settings
from orbitmq.broker import settings_explained as broker_explained
from orbitmq.configuration import known_keys
from orbitmq.nameserver import settings as nameserver_settings
from orbitmq.nameserver import settings_explained as nameserver_explained
from tests import configuration_reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    import msgspec

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "orbitmq"
DOCUMENT = ROOT / "docs" / "architecture.md"
FILES = sorted(SOURCE.rglob("*.py"))
EVERYONE = "every room"


def block_under(heading: str) -> list[str]:
    """The lines of the first fenced block under a heading of the document."""
    text = DOCUMENT.read_text()
    found = re.search(rf"^## {re.escape(heading)}$.*?^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/architecture.md has no block under {heading!r}"
    return [line for line in found[1].splitlines() if line.strip()]


@cache
def allowed_imports() -> dict[str, set[str]]:
    """Room -> the rooms it may import from, as `room -> room room`."""
    table = {}
    for line in block_under("Who may import whom"):
        room, arrow, rooms = line.partition("->")
        assert arrow, line
        table[room.strip()] = set(rooms.split()) - {"nothing"}
    return table


@cache
def allowed_touches() -> dict[str, set[str]]:
    """What -> the files that may touch it; `what: file file`, continued on indented lines."""
    table: dict[str, set[str]] = {}
    what = ""
    for line in block_under("Who may touch what"):
        if not line.startswith(" "):
            what, _, line = line.partition(":")
            table[what] = set()
        table[what] |= set(line.split())
    return table


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imported_modules(path: Path) -> Iterator[str]:
    """Full names of the modules of ours that a file imports, wherever in it."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "orbitmq")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            if node.module is not None and node.module.split(".")[0] == "orbitmq":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for module in imported_modules(path):
        parts = module.split(".")
        if len(parts) > 1 and not parts[1].startswith("__"):
            rooms.add(parts[1])
    return rooms - {room_of(path)}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a file with its dotted name: `os.open`, `path.read_text`, `open`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


# ---- imports


def test_every_room_is_in_the_document_and_the_document_names_no_other() -> None:
    rooms = {room_of(path) for path in FILES} - {"__init__", "__main__"}
    drawn = set(allowed_imports()) - {EVERYONE}
    assert rooms - drawn == set(), "rooms that docs/architecture.md does not know"
    planned = set(block_under("Rooms that are planned")[0].split()) if drawn - rooms else set()
    assert drawn - rooms <= planned, "the document draws rooms that nobody built"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_what_the_document_allows(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    allowed = allowed_imports()[room] | allowed_imports()[EVERYONE]
    assert imported_rooms(path) - allowed == set()


def test_the_document_allows_no_circle_of_rooms() -> None:
    table = {room: set(rooms) for room, rooms in allowed_imports().items() if room != EVERYONE}
    while free := [room for room, needs in table.items() if not needs & table.keys()]:
        for room in free:
            del table[room]
    assert table == {}, f"these import each other in a circle: {sorted(table)}"


@pytest.mark.parametrize("room", ["broker", "nameserver"])
def test_state_never_imports_handlers(room: str) -> None:
    """Handlers import the state they work on, never the reverse; `routes.py` brings them together."""
    for path in (SOURCE / room).rglob("*.py"):
        relative = path.relative_to(SOURCE / room)
        if relative.parts[0] == "handlers" or relative.name in ("routes.py", "handlers.py"):
            continue
        found = [name for name in imported_modules(path) if name.startswith(f"orbitmq.{room}.handlers")]
        assert found == [], relative


def test_no_function_is_longer_than_the_rules_allow() -> None:
    found = re.search(r"No function over (\d+) lines", (ROOT / "CONTRIBUTING.md").read_text())
    assert found is not None
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < int(found[1]), f"{path.relative_to(ROOT)}: {node.name}"


def test_storage_waits_for_nothing() -> None:
    for path in (SOURCE / "storage").rglob("*.py"):
        tree = tree_of(path)
        assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree)), path
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        assert "asyncio" not in {alias.name for node in imports for alias in node.names}, path


# ---- seams

SOCKETS = re.compile(
    r"(^|\.)(create_connection|create_server|create_datagram_endpoint|create_unix_\w+|sock_connect|urlopen)$"
    r"|^socket\.(socket|create_\w+)$|^asyncio\.(open_connection|start_server|open_unix_connection|start_unix_server)$"
)
DISK = re.compile(
    r"^(open|io\.open|mmap\.mmap|shutil\.\w+|tempfile\.\w+)$"
    r"|^os\.(open|read|write|pread|pwrite|fsync|fdatasync|replace|rename|remove|unlink|mkdir|makedirs|rmdir|stat|lstat"
    r"|listdir|scandir|truncate|ftruncate|posix_fallocate|link|symlink|utime|statvfs)$"
    r"|\.(read_text|write_text|read_bytes|write_bytes|touch|rmdir|iterdir|rglob|symlink_to|hardlink_to)$"
    r"|(?<!disk)\.(mkdir|unlink|exists|is_file|is_dir)$"
)
CLOCK = re.compile(r"^(time\.(time|time_ns)|(\w+\.)*(datetime\.(now|utcnow|today)|date\.today))$")
CHANCE = re.compile(r"^random\.(?!Random$|SystemRandom$)\w+$")


@pytest.mark.parametrize(
    ("what", "pattern"), [("sockets", SOCKETS), ("disk", DISK), ("clock", CLOCK), ("chance", CHANCE)]
)
def test_only_the_files_named_in_the_document_touch_it(what: str, pattern: re.Pattern[str]) -> None:
    found: dict[str, list[str]] = {}
    for path in FILES:
        lines = [f"line {node.lineno}: {name}" for name, node in calls(path) if pattern.search(name)]
        if lines:
            found[str(path.relative_to(SOURCE))] = lines
    allowed = allowed_touches()[what]
    assert {name: lines for name, lines in found.items() if name not in allowed} == {}, "not named in the document"
    assert allowed - found.keys() - {"nothing"} == set(), "named in the document, but they no longer do"


# ---- errors


def test_the_drawing_of_the_errors_is_true() -> None:
    """`errors.py` draws its tree at the top; the drawing names exactly the classes below it."""
    tree = tree_of(SOURCE / "errors.py")
    drawn = set(re.findall(r"[│├└─ ]*\b([A-Z]\w+)\s{2,}", ast.get_docstring(tree, clean=False) or ""))
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert drawn == defined


# ---- settings


def test_every_setting_is_explained_and_docs_configuration_says_so() -> None:
    """Whoever adds a setting says in the room's settings_explained.py what it means, and runs
    `python -m tests.configuration_reference`."""
    for settings, explained in ((broker_settings, broker_explained), (nameserver_settings, nameserver_explained)):
        kind: type[msgspec.Struct] = settings.Settings
        meanings = {**explained.EXPLAINED, **ACCESS_EXPLAINED}
        assert known_keys(kind) - meanings.keys() == set(), "settings that nobody explains"
        assert meanings.keys() - known_keys(kind) == set(), "explanations of what is no setting"
    assert known_keys(broker_settings.Settings) >= broker_settings.AT_NEXT_START
    for row in broker_explained.rows():
        assert row.meaning, row.key
        assert not row.key.endswith(("Ms", "Mills", "Millis")) or row.unit == "ms", row.key
    page = configuration_reference.page()
    assert page == configuration_reference.PAGE.read_text(), "run: python -m tests.configuration_reference"
