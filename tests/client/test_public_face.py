"""What users see: the names, their documentation, quick to import, quiet at exit."""

import ast
import asyncio
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import orbitmq
from orbitmq import errors
from tests import api_reference
from tests.client.scripted import scripted_cluster


def test_the_public_names_are_these() -> None:
    assert sorted(orbitmq.__all__) == sorted([
        "AlreadyClosed", "App", "CallTimeout", "Client", "Codec", "ConfigError", "ConnectFailed", "ConnectionLost",
        "ConsumeHook", "Consumer", "Consuming", "Credentials", "Fetched", "JsonCodec", "LeaseConsumer", "LeasedMessage", "Message", "MessageError",
        "OpenTelemetry", "OrbitError", "Producer", "PullConsumer", "QueueRef", "Receipt", "ReceivedMessage",
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


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, orbitmq; print([name for name in ('asyncio', 'msgspec', 'ssl', 'click') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
