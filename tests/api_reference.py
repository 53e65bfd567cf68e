"""docs/api.md, made from signatures and docstrings: `make docs`, or `python -m tests.api_reference`.

Public are the names of `orbitmq` and what they have that does not begin with an underscore; `orbitmq.sync` has the same names.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orbitmq
from orbitmq import errors, sync

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE: Final = Path(__file__).parents[1] / "docs" / "api.md"

_LINE: Final = 110
_MADE_BY_USERS: Final = {
    "App",
    "Message",
    "OpenTelemetry",
    "Tracer",
}  # the rest comes out of methods, or has fields only
_INTRODUCTION: Final = """# API reference

Made from the code by `make docs`; do not edit. What the parts are for, with examples, is in [client.md](client.md). Everything here
is imported from `orbitmq`. `orbitmq.sync` has the same names for programs without asyncio, where methods wait instead of being
awaited: {blocking}.
"""


def page() -> str:
    names = [name for name in orbitmq.__all__ if not name.startswith("__")]
    raised = [name for name in names if _is_error(getattr(orbitmq, name))]
    functions = [name for name in names if inspect.isfunction(getattr(orbitmq, name))]
    classes = [name for name in names if name not in raised and name not in functions]
    parts = [_INTRODUCTION.format(blocking=", ".join(f"`{name}`" for name in sync.__all__))]
    parts += [_function(name, getattr(orbitmq, name), "##") for name in functions]
    parts += [_class(name, getattr(orbitmq, name)) for name in classes]
    tree = inspect.getdoc(errors)
    parts += [f"## Errors\n\n```\n{tree}\n```\n", f"From `orbitmq`: {', '.join(f'`{name}`' for name in raised)}.\n"]
    return "\n".join(parts)


def _is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def _class(name: str, kind: type) -> str:
    text = _doc(kind)
    lines = [f"## {name}\n", f"{text}\n"]
    if name in _MADE_BY_USERS:
        lines.append(_signature(name, vars(kind)["__init__"]))
    lines += [f"- `{field}`" for field in _fields(kind)]
    for member, value in _members(kind):
        if isinstance(value, property):
            lines.append(f"- **`{member}`**: {_doc(value)}")
    lines.append("")
    lines += [
        _function(f"{name}.{member}", value, "###")
        for member, value in _members(kind)
        if not isinstance(value, property)
    ]
    return "\n".join(lines)


def _members(kind: type) -> Iterator[tuple[str, object]]:
    for member, value in vars(kind).items():
        if not member.startswith("_") and (isinstance(value, property) or inspect.isfunction(value)):
            yield member, value


def _fields(kind: type) -> Iterator[str]:
    """The data of a value: what a struct, a dataclass or an enumeration is made of."""
    for node in _source(kind).body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and not target.id.startswith("_"):
            yield ast.unparse(node)


def _source(kind: type) -> ast.ClassDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return tree


def _function(name: str, function: object, heading: str) -> str:
    return f"{heading} {name}\n\n{_signature(name, function)}\n{_doc(function)}\n"


def _signature(name: str, function: object) -> str:
    """As the source writes it, with a parameter a line where it is long."""
    assert callable(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    parameters = [one for one in _parameters(tree.args) if one != "self"]
    awaited = "await " if isinstance(tree, ast.AsyncFunctionDef) else ""
    result = f" -> {ast.unparse(tree.returns)}" if tree.returns is not None and tree.name != "__init__" else ""
    text = f"{awaited}{name}({', '.join(parameters)}){result}"
    if len(text) > _LINE:
        text = f"{awaited}{name}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){result}"
    return f"```python\n{text}\n```\n"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    without = len(arguments.args) - len(arguments.defaults)
    for number, one in enumerate(arguments.args):
        default = arguments.defaults[number - without] if number >= without else None
        yield _parameter(one, default)
    if arguments.vararg is not None:
        yield f"*{_parameter(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(one, default)
    if arguments.kwarg is not None:
        yield f"**{_parameter(arguments.kwarg, None)}"


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(parameter)
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _doc(value: object) -> str:
    """A docstring as Markdown: what is indented in it is code."""
    text = inspect.getdoc(value)
    assert text, f"{value} has no documentation"
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        is_code = line.startswith("    ") or (in_code and not line)
        if is_code != in_code:
            lines.append("```" if in_code else "```python")
            in_code = is_code
        lines.append(line.removeprefix("    ") if is_code else line)
    return "\n".join([*lines, "```"] if in_code else lines)


if __name__ == "__main__":
    PAGE.write_text(page())
