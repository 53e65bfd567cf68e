"""What users see: the names, their documentation, quick to import, quiet at exit."""

import ast
import asyncio
import inspect
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import msgspec

import orbitmq
from orbitmq import errors
from tests import api_reference
from tests.client.scripted import scripted_cluster


def test_the_public_names_are_these() -> None:
    assert sorted(orbitmq.__all__) == sorted([
        "AlreadyClosed", "App", "CallTimeout", "Client", "Codec", "ConfigError", "ConnectFailed", "ConnectionLost",
        "ConsumeHook", "Consumer", "Consuming", "Credentials", "Fetched", "JsonCodec", "LeaseConsumer", "LeasedMessage", "Message", "MessageError",
        "OpenTelemetry", "OrbitError", "Producer", "PullConsumer", "QueueRef", "Recall", "Receipt", "ReceivedMessage",
        "RequestFailed", "RetryLater", "SendHook", "SendStatus", "Sending", "Sql", "Tracer", "Transaction",
        "TransactionEnd", "TransactionProducer", "TransportError", "__version__", "connect",
    ])  # fmt: skip
    for name in orbitmq.__all__:
        assert getattr(orbitmq, name) is not None
    assert dir(orbitmq) == sorted(orbitmq.__all__)


def test_every_public_name_is_documented() -> None:
    undocumented = []
    for name in orbitmq.__all__:
        value = getattr(orbitmq, name)
        if name == "__version__" or (inspect.isclass(value) and issubclass(value, Exception)):
            continue  # the errors are drawn as one tree, with a line each
        if not inspect.getdoc(value):
            undocumented.append(name)
        if inspect.isclass(value) and value.__module__.startswith("orbitmq.client"):
            undocumented += [
                f"{name}.{member}"
                for member in vars(value)
                if not member.startswith("_")
                and inspect.isfunction(getattr(value, member))
                and not inspect.getdoc(getattr(value, member))  # an overriding method inherits its base's
            ]
    assert undocumented == []


def test_every_error_that_the_client_raises_says_what_to_do() -> None:
    """Each is raised with a hint where it happens: `raise ConfigError("...", hint="...")`."""
    tree = {name for name, value in vars(errors).items() if inspect.isclass(value)} - {"RetryLater"}
    package = Path(orbitmq.__file__).parent
    # What a broker asked is answered, not raised to the program.
    files = [path for path in (package / "client").glob("*.py") if path.name != "broker_requests.py"]
    silent: list[str] = []
    for path in [*files, *(package / "transport" / name for name in ("calls.py", "lookup.py", "pool.py"))]:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in tree]
        silent += [
            f"{path.name}:{call.lineno}" for call in made if all(keyword.arg != "hint" for keyword in call.keywords)
        ]
    assert silent == []


def test_the_api_reference_is_current() -> None:
    assert api_reference.PAGE.read_text() == api_reference.page(), "run `make docs`"


def _loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has after running it, without those it begins with."""
    code = f"import sys; before = set(sys.modules); {code}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = _loaded_by("import orbitmq")
    assert loaded.isdisjoint({"asyncio", "msgspec", "ssl", "click"})
    assert {name for name in loaded if name.startswith("orbitmq")} == {"orbitmq"}


def test_the_client_loads_no_server_no_tool_and_no_optional_package() -> None:
    loaded = _loaded_by("from orbitmq import *; from orbitmq import sync")
    assert "orbitmq.client.consumer" in loaded
    rooms = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("orbitmq.")}
    ours = {"client", "clock", "errors", "fastjson", "message", "protocol", "saved_file", "sync", "tasks", "transport"}
    assert rooms <= {f"orbitmq.{room}" for room in ours}
    optional = {
        "click",
        "lz4",
        "numpy",
        "opentelemetry",
        "pyarrow",
        "pydantic",
        "pyspark",
        "rich",
        "uvloop",
        "yaml",
        "zstandard",
    }
    rarely_needed = {"email", "http", "multiprocessing", "unittest", "urllib.request", "xml"}
    assert loaded.isdisjoint(optional | rarely_needed)


def test_the_plain_client_is_small_to_install() -> None:
    """At most 10 MB with its dependencies, bytecode included, which is about as large as what it is made from."""
    project = tomllib.loads((api_reference.PAGE.parents[1] / "pyproject.toml").read_text())["project"]
    assert [re.split(r"\W", one)[0] for one in project["dependencies"]] == ["msgspec"]
    packages = [Path(orbitmq.__file__).parent, Path(msgspec.__file__).parent]
    files = [path for package in packages for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    python = sum(path.stat().st_size for path in files if path.suffix == ".py")
    assert sum(path.stat().st_size for path in files) + python <= 10_000_000


async def test_a_program_ends_quietly_even_when_it_forgets_to_close() -> None:
    """No `Task was destroyed`, no unclosed transports, no hanging thread."""
    async with scripted_cluster() as cluster:
        programs = {
            "async, closed": f"""
                import asyncio, orbitmq as mq
                async def main():
                    async with mq.connect("{cluster.address}") as c, c.producer("P") as p, c.consumer("T", group="G"):
                        await p.send("T", b"x")
                asyncio.run(main())
            """,
            "async, cancelled": f"""
                import asyncio, orbitmq as mq
                async def main():
                    async with mq.connect("{cluster.address}") as c, c.consumer("T", group="G2") as sub:
                        try:
                            await asyncio.wait_for(anext(sub), 0.05)
                        except TimeoutError:
                            pass
                asyncio.run(main())
            """,
            "sync, forgotten": f"""
                from orbitmq.sync import connect
                c = connect("{cluster.address}")
                c.producer("P").send("T", b"x")
                c.consumer("T", group="G3", handler=print).__enter__()
            """,
        }
        for name, program in programs.items():
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-W", "error", "-c", textwrap.dedent(program),
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            async with asyncio.timeout(30):
                _, errors = await process.communicate()
            assert (process.returncode, errors.decode()) == (0, ""), name
