"""The page "Every error message": found in the code, where each is raised with its cure."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from orbitmq import errors

SOURCE: Final = Path(inspect.getfile(errors)).parent
_KINDS: Final[dict[str, Any]] = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
_ROOMS: Final = {
    "transport": "Connections",
    "client": "The client",
    "broker": "The broker",
    "nameserver": "The name server",
    "access": "Access control",
    "configuration.py": "Settings",
    "storage": "The store",
    "cli": "The command",
    "admin": "Looking at clusters and changing them",
    "spark": "Spark",
    "message": "Messages",
    "protocol": "The protocol",
    "testing": "Servers in tests",
}
# What to do where the error itself says no more than what happened.
_CURES: Final = {
    "ConfigError": "correct the setting or argument it names; [configuration.md](configuration.md)",
    "ForbiddenSetting": "change it in the server's file and start it again",
    "FrameError": "is that a RocketMQ server or client, and the port right? `orbitmq doctor` looks",
    "HeaderError": "the other side sent what RocketMQ does not: which program and version is it?",
    "BodyError": "the other side sent what RocketMQ does not: which program and version is it?",
    "MessageError": "send another message: this one cannot be encoded, or was damaged",
    "RequestFailed": "the server refused, and its words say why",
    "TransportError": "try again; `orbitmq doctor` looks at every step of the way",
    "ConnectFailed": "`orbitmq doctor` looks at every step of the way",
    "ConnectionLost": "try again; a send may have been stored",
    "CallTimeout": "try again, or give it longer; a send may have been stored",
    "AlreadyClosed": "use it inside its `async with`",
    "StorageError": "see [operations.md](operations.md#when-a-disk-is-full-or-broken)",
    "StoreCorrupt": "`orbitmq store verify` says what is wrong, `orbitmq store repair` mends what can be",
    "StoreLocked": "one process at a time has a store open: stop the other",
    "StoreFull": "make room, or keep messages for fewer hours (`fileReservedTime`)",
    "StoreFenced": "move the store to a sound disk and start again",
    "OrbitError": "its words say what to do",
    "ProtocolError": "which program and version is on the other side?",
}


class Raised(NamedTuple):
    kind: str
    text: str
    cure: str


def raised() -> dict[str, set[Raised]]:
    """Room -> what is raised there with a text of its own."""
    found: dict[str, set[Raised]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (one := _raised(node)) is not None:
                found[room].add(one)
    return found


def _raised(call: ast.Call) -> Raised | None:
    kind = ast.unparse(call.func).rpartition(".")[2]
    if kind not in _KINDS or kind == "RetryLater" or not call.args:
        return None
    text = _words(call.args[1] if kind == "RequestFailed" and len(call.args) > 1 else call.args[0])
    if not text or not any(character.isalpha() for character in text.replace("…", "")):
        return None  # passed on from elsewhere
    hints = [_words(keyword.value) for keyword in call.keywords if keyword.arg == "hint"]
    return Raised(kind, text, hints[0] if hints and hints[0] else "")


def _words(node: ast.expr) -> str:
    """A text with … where the program puts something in; nothing for what is made elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]
    return ""


def page() -> str:
    parts = [
        "# Every error message\n\nFound in the code when this site was built. … stands for what the program puts in. Questions "
        "about the common ones: [faq.md](faq.md); how a program handles them: [client.md](client.md).\n"
    ]
    found = raised()
    for room, title in _ROOMS.items():
        parts.append(f"\n## {title}\n\n| Message | Kind | What to do |\n|---|---|---|\n")
        for kind, text, cure in sorted(found[room], key=lambda one: one.text.strip("…'[ ").lower()):
            parts.append(f"| {_cell(text)} | `{kind}` | {_cell(cure) if cure else _general_cure(kind)} |\n")
    return "".join(parts)


def _general_cure(kind: str) -> str:
    return next(_CURES[parent.__name__] for parent in _KINDS[kind].__mro__ if parent.__name__ in _CURES)


def templates() -> set[str]:
    """Every text in the code but docstrings, … where something is put in."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Expr):  # a docstring is one, with the text below it
                found |= {_words(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)}
    return found - {""}


def _cell(text: str) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;").replace("\n", " ")
    return "".join(f"\\{character}" if character in "\\`*_[]" else character for character in escaped)
