"""Records what Apache's brokers and name server say to each other into tests/golden/frames/nameserver-extra.jsonl.

Run as `python -m tests.interop.record_nameserver`; it takes about two minutes. Per release and header codec: one name server, and one
broker that reaches it through a tap, set up so that it says what it rarely says:

    104          by stopping
    217          enableSingleTopicRegister=true and a topic made
    322          forceRegister=false and the registration after ten seconds; one-way, as a heartbeat: enableSlaveActingMaster=true
    901, 904     a second broker, also with compatibleWithOldNameSrv=false: the member group is asked for, heartbeats are sent
    905          notifyMinBrokerIdChanged=true in the name server; the listener that gets it is our own, registered as slave of the
                 broker, because the name server opens that connection itself and no tap can stand in it

Of each kind (sender, code, answer or not, note) the first frame is kept.
"""

import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.interop import apache
from tests.interop.apache import Broker, BrokerPlan, NameServer
from tests.interop.java import RELEASES, JavaBuild, build
from tests.interop.tap import TO_SERVER, Tap
from tests.interop.wire import Command, ask, decode, encode, read_frame

FILE: Final = Path(__file__).parents[1] / "golden" / "frames" / "nameserver-extra.jsonl"

REGISTER_BROKER: Final = 103
UPDATE_AND_CREATE_TOPIC: Final = 17
NOTIFY_MIN_BROKER_ID_CHANGE: Final = 905
NAMES: Final = {
    103: "REGISTER_BROKER",
    104: "UNREGISTER_BROKER",
    217: "REGISTER_TOPIC_IN_NAMESRV",
    322: "QUERY_DATA_VERSION",
    901: "GET_BROKER_MEMBER_GROUP",
    904: "BROKER_HEARTBEAT",
    905: "NOTIFY_MIN_BROKER_ID_CHANGE",
}
# The broker's second registration, and with it code 322, comes ten seconds after its start.
_SECOND_REGISTRATION_SECONDS: Final = 13
_ONE_WAY: Final = 2


class Recorder:
    """Keeps the first frame of each kind, for one release and header codec."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._asked: dict[int, Command] = {}
        self._kinds: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def tapped(self, direction: bool, frame: bytes) -> None:
        command = decode(frame)
        with self._lock:
            if direction == TO_SERVER:
                self._asked[command.opaque] = command
                self._keep("broker", command, frame, self._note_request(command))
            elif command.is_answer and (request := self._asked.get(command.opaque)) is not None:
                self._keep("nameserver", command, frame, self._note_answer(request, command), to_code=request.code)

    def notified(self, frame: bytes) -> None:
        """A request of the name server's own."""
        command = decode(frame)
        with self._lock:
            self._keep("nameserver", command, frame, f"{NAMES[command.code]}, one-way, to broker")

    def rows(self) -> list[dict[str, Any]]:
        with self._lock:
            return [self._kinds[kind] for kind in sorted(self._kinds)]

    def _note_request(self, command: Command) -> str:
        details = [NAMES.get(command.code, str(command.code))]
        if command.code == REGISTER_BROKER:
            details.append(f"brokerId {command.fields['brokerId']}")
        if "heartbeatTimeoutMillis" in command.fields:
            details.append("acting master")
        if command.flag & _ONE_WAY:
            details.append("one-way")
        return ", ".join([*details, "to name server"])

    def _note_answer(self, request: Command, answer: Command) -> str:
        details = [f"answer to {self._note_request(request).removesuffix(', to name server')} = {answer.code}"]
        details += [f"{key}={answer.fields[key]}" for key in ("changed",) if key in answer.fields]
        details += ["body"] if answer.body else []
        return ", ".join(details)

    def _keep(self, sender: str, command: Command, frame: bytes, note: str, to_code: int | None = None) -> None:
        if (to_code or command.code) not in NAMES:
            return
        row: dict[str, Any] = {"from": sender, "code": command.code, "response": command.is_answer}
        if to_code is not None:
            row["to_code"] = to_code
        codec = "binary" if command.binary else "json"
        row["note"] = f"{self._label}, {codec} header: {note}"
        row["hex"] = (len(frame).to_bytes(4, "big") + frame).hex()
        self._kinds.setdefault(f"{to_code or command.code:04} {row['note']}", row)


def record(java: JavaBuild, folder: Path, *, binary_headers: bool) -> list[dict[str, Any]]:
    recorder = Recorder(java.release)
    with ExitStack() as stack:
        server = apache.start_name_server(
            java, folder / "namesrv", {"notifyMinBrokerIdChanged": "true"}, binary_headers=binary_headers
        )
        stack.callback(server.process.kill)
        tap = stack.enter_context(closing(Tap(server.address, recorder.tapped)))

        def start(name: str, settings: Mapping[str, str | int]) -> Broker:
            plan = BrokerPlan(
                name=name,
                cluster="cluster",
                name_servers=[tap.address],
                settings=settings,
                binary_headers=binary_headers,
            )
            broker = apache.start_broker(java, folder / name, plan)
            stack.callback(broker.process.kill)
            return broker

        talkative = start("talkative", _TALKATIVE)
        started = time.monotonic()
        make_topic(talkative, "Recorded")
        if java.release.startswith("5"):
            stack.enter_context(_listening_as_slave(server, talkative, recorder))
            start("modern", {**_TALKATIVE, "compatibleWithOldNameSrv": "false"})
        time.sleep(max(0.0, started + _SECOND_REGISTRATION_SECONDS - time.monotonic()))
        talkative.process.stop()
        time.sleep(2)  # the name server notices, and notifies the slave
    return recorder.rows()


_TALKATIVE: Final[Mapping[str, str | int]] = {
    "forceRegister": "false",
    "registerNameServerPeriod": 10_000,
    "enableSingleTopicRegister": "true",
    "enableSlaveActingMaster": "true",
    "skipPreOnline": "true",
}


def make_topic(broker: Broker, topic: str) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    answer = ask(broker.address, UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == 0, answer


@contextmanager
def _listening_as_slave(server: NameServer, master: Broker, recorder: Recorder) -> Iterator[None]:
    """Register a listener of ours as the master's slave; whatever the name server tells it is recorded."""
    host, port = server.address.rsplit(":", 1)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection((host, int(port))) as registration,
    ):
        threading.Thread(target=_serve, args=(listener, recorder), daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        fields = {
            "brokerName": master.name,
            "brokerAddr": address,
            "clusterName": master.cluster,
            "haServerAddr": address,
            "brokerId": "1",
            "enableActingMaster": "true",
            "heartbeatTimeoutMillis": "600000",
        }
        registration.sendall(encode(REGISTER_BROKER, fields))
        answer = read_frame(registration)
        assert answer is not None
        assert decode(answer).code == 0
        yield  # with the registration's connection open: closed, it would mean the slave's end


def _serve(listener: socket.socket, recorder: Recorder) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            while (frame := read_frame(connection)) is not None:
                recorder.notified(frame)


def main() -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="orbitmq-record-", ignore_cleanup_errors=True) as folder:
        for release in RELEASES:
            for binary_headers in (False, True):
                rows += record(
                    build(release), Path(folder) / f"{release}-{binary_headers}", binary_headers=binary_headers
                )
    FILE.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
