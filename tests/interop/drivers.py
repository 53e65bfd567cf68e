"""Apache's mqadmin and clients, each a long-running process that is spoken to line by line.

Java: our interop/src/main/java/orbitmq/Admin.java and Client.java, where the two protocols are described. Clients in other
languages (languages.py) are driven by the same verbs.
"""

import base64
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Final

from tests.interop.apache import BINARY_HEADERS
from tests.interop.java import JavaBuild

CALL_SECONDS: Final = 60.0
# Apache's three seconds pass quickly on a machine where every core has other work too.
_PATIENCE: Final = {"sendMsgTimeout": 20_000, "mqClientApiTimeout": 10_000}
# A client that asked for a route a moment too early asks again after 30 s; one whose heartbeat fell together with another tells its
# subscription after 30 s, and until then pulls in vain; queues are shared anew every 20 s. No test waits for that.
_EAGER: Final = {"pollNameServerInterval": 1000, "heartbeatBrokerInterval": 1000}
_EAGER_JVM: Final = {"rocketmq.client.rebalance.waitInterval": "1000"}


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """What one mqadmin command printed; `exit_status` is None when it simply returned."""

    out: str
    err: str
    exit_status: int | None

    def __str__(self) -> str:
        return f"{self.out}\n{self.err}\nexit status {self.exit_status}"


class MqAdmin:
    """Apache's mqadmin. Commands run one after the other in one JVM."""

    def __init__(self, java: JavaBuild, folder: Path, properties: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True)
        self._command = java.command("orbitmq.Admin", home=folder, properties=properties)
        self._errors = folder / "mqadmin.err"
        self._jvm = _LineProcess(self._command, self._errors)

    def run(self, *command: str) -> AdminAnswer:
        self._jvm.write(list(command))
        answer = self._jvm.read()
        if not answer["exited"]:
            return AdminAnswer(answer["out"], answer["err"], None)
        status = self._jvm.close()
        self._jvm = _LineProcess(self._command, self._errors)
        return AdminAnswer(answer["out"], answer["err"], status)

    def close(self) -> None:
        self._jvm.close()


class ClientError(Exception):
    """The client threw: the exception's simple name, the server's response code if there was one, the message."""

    def __init__(self, type_name: str, code: int | None, message: str) -> None:
        super().__init__(f"{type_name}({code}): {message}")
        self.type_name = type_name
        self.code = code


@dataclass(frozen=True, slots=True)
class Received:
    """A message as the driven consumer saw it."""

    topic: str
    id: str
    broker: str
    queue: int
    offset: int
    tag: str | None
    keys: str | None
    attempt: int
    properties: Mapping[str, str]
    body: bytes


class DrivenClient:
    """A client library in a process of its own. Calls from several threads run side by side."""

    producer_options: ClassVar[Mapping[str, object]] = {}
    consumer_options: ClassVar[Mapping[str, object]] = {}

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        """`folder` exists, and is the home and the working folder of the process."""
        self._process = _LineProcess(command, folder / "client.err", {"HOME": str(folder)})
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()

    def call(self, verb: str, *, seconds: float = CALL_SECONDS, **arguments: object) -> Any:
        """Run a verb (for Java, a class of orbitmq.verbs) and return its result; ClientError when the client threw."""
        request_id = next(self._ids)
        answer = self._waiting[request_id] = Future()
        self._process.write({"id": request_id, "verb": verb, **arguments})
        return answer.result(seconds)

    def open_producer(
        self,
        name: str,
        name_server: str,
        *,
        credentials: tuple[str, str] | None = None,
        trace: bool = False,
        compression: str = "ZLIB",
        **options: object,
    ) -> None:
        self.call(
            "OpenProducer",
            **_as_fields(credentials),
            name=name,
            nameServer=name_server,
            group=f"P_{name}",
            trace=trace,
            compression=compression,
            options={**self.producer_options, **options},
        )

    def send(
        self,
        name: str,
        topic: str,
        messages: Sequence[Mapping[str, object]],
        *,
        mode: str = "sync",
        order_key: str | None = None,
        may_fail: bool = False,
    ) -> list[dict[str, Any]]:
        """One receipt a message (one in all for a batch, none for one-way); of a send that may fail, and does, it has an `error`."""
        receipts: list[dict[str, Any]] = self.call(
            "Send", name=name, topic=topic, messages=list(messages), mode=mode, orderKey=order_key
        )
        failures = [receipt["error"] for receipt in receipts if "error" in receipt]
        assert may_fail or not failures, failures
        return receipts

    def open_push_consumer(
        self,
        name: str,
        name_server: str,
        topic: str,
        *,
        group: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        orderly: bool = False,
        broadcasting: bool = False,
        fail_first: int = 0,
        credentials: tuple[str, str] | None = None,
        trace: bool = False,
        **options: object,
    ) -> None:
        self.call(
            "OpenPushConsumer",
            **_as_fields(credentials),
            name=name,
            nameServer=name_server,
            group=group or f"C_{name}",
            topic=topic,
            tags=tags,
            sql=sql,
            orderly=orderly,
            broadcasting=broadcasting,
            failFirst=fail_first,
            trace=trace,
            options={**self.consumer_options, **options},
        )

    def received(self, name: str, count: int, seconds: float = 30.0) -> list[Received]:
        """What a push consumer has received since last asked, once it is `count` messages or the time is up."""
        messages = self.call(
            "Received", seconds=seconds + CALL_SECONDS, name=name, count=count, timeoutMillis=int(seconds * 1000)
        )
        return [_received(message) for message in messages]

    def open_pull_consumer(
        self, name: str, name_server: str, topic: str, *, group: str = "", broker: str | None = None, **options: object
    ) -> None:
        """With `broker`, it reads queue 0 there, and finds its address through another client of its `instanceName`."""
        options = {**self.consumer_options, **options}
        self.call(
            "OpenPullConsumer", name=name, nameServer=name_server, group=group or f"C_{name}", topic=topic,
            broker=broker, options=options,
        )  # fmt: skip

    def poll(self, name: str, count: int, seconds: float = 30.0) -> list[Received]:
        """Poll a lite pull consumer until it gave `count` messages or the time is up."""
        messages = self.call(
            "Poll", seconds=seconds + CALL_SECONDS, name=name, count=count, timeoutMillis=int(seconds * 1000)
        )
        return [_received(message) for message in messages]

    def open_admin_tool(self, name: str, name_server: str) -> None:
        self.call("OpenAdminTool", name=name, nameServer=name_server)

    def close_one(self, name: str) -> None:
        """Close a producer, consumer or admin tool."""
        self.call("Close", name=name)

    def close(self) -> None:
        self._process.close()
        self._reader.join()

    def kill(self) -> None:
        """End the process as a crash would: nobody is told."""
        self._process.kill()
        self.close()

    def _read_answers(self) -> None:
        while (answer := self._process.read_or_end()) is not None:
            waiting = self._waiting.pop(answer["id"])
            if (error := answer.get("error")) is not None:
                waiting.set_exception(ClientError(error["type"], error.get("code"), error["message"]))
            else:
                waiting.set_result(answer.get("result"))
        for waiting in self._waiting.values():
            waiting.set_exception(AssertionError(f"the client ended:\n{self._process.printed()}"))


class JavaClient(DrivenClient):
    """Apache's Java client in one JVM."""

    producer_options: ClassVar[Mapping[str, object]] = {**_EAGER, **_PATIENCE}
    consumer_options: ClassVar[Mapping[str, object]] = _EAGER

    def __init__(
        self,
        java: JavaBuild,
        folder: Path,
        *,
        binary_headers: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """`properties` are Java's system properties."""
        folder.mkdir(parents=True)
        system = {**_EAGER_JVM, **(BINARY_HEADERS if binary_headers else {}), **(properties or {})}
        super().__init__(java.command("orbitmq.Client", home=folder, properties=system), folder)

    def ask(self, name: str, method: str, *arguments: object) -> Any:
        """Call a method of Apache's DefaultMQAdminExt."""
        return self.call("Ask", name=name, method=method, arguments=list(arguments))


def _as_fields(credentials: tuple[str, str] | None) -> dict[str, Any]:
    return {} if credentials is None else {"accessKey": credentials[0], "secretKey": credentials[1]}


def _received(message: dict[str, Any]) -> Received:
    return Received(
        topic=message["topic"],
        id=message["id"],
        broker=message["broker"],
        queue=message["queue"],
        offset=message["offset"],
        tag=message.get("tag"),
        keys=message.get("keys"),
        attempt=message["attempt"],
        properties=message["properties"],
        body=base64.b64decode(message["bytes"]),
    )


class _LineProcess:
    """A process that reads JSON lines and writes JSON lines."""

    def __init__(self, command: Sequence[str], errors: Path, environment: Mapping[str, str] | None = None) -> None:
        self._errors = errors
        with errors.open("ab") as stderr:
            # In a folder of its own: some of Apache's commands write files where they are started.
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=errors.parent,
                env={**os.environ, **(environment or {})},
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._input: IO[bytes] = self._child.stdin
        self._output: IO[bytes] = self._child.stdout
        self._writing = threading.Lock()

    def write(self, line: object) -> None:
        with self._writing:
            self._input.write(json.dumps(line).encode() + b"\n")
            self._input.flush()

    def read_or_end(self) -> dict[str, Any] | None:
        line = self._output.readline()
        answer: dict[str, Any] | None = json.loads(line) if line else None
        return answer

    def read(self) -> dict[str, Any]:
        answer = self.read_or_end()
        assert answer is not None, f"the process ended:\n{self.printed()}"
        return answer

    def printed(self) -> str:
        return self._errors.read_text(errors="replace")

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def close(self) -> int:
        """End of input, which ends the process; killed when it does not. Its exit status."""
        with self._writing:
            self._input.close()
        try:
            return self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()
        finally:
            self._output.close()
