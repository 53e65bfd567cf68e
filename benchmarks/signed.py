"""What access control costs: signed sends beside unsigned ones, `python -m benchmarks signed [--seconds S] [--rounds N]`.

Brokers of ours: open, with users and policies (5.x), with access files (4.x); the sender may send to its topic and nothing else. JSON
headers and binary ones. All of them take turns of half a second; each is compared with the unsigned turn beside it, and the median of these
shares counts: rates of one broker differ by a third from one second to the next where others use the machine, too, which is more
than a signature costs. On a busy machine the rates say little and the processor time of the broker does.

In each round the brokers begin with empty stores.

The generator sends the same messages to all of them, over and over. It signs each of them over its own fields and body, before it starts
the clock; the broker knows nothing of that and checks each one it gets. The generator's processor time is in the table, too: were it
more for signed sends, it would be the generator that is compared.
Results: benchmarks/results/signed.json.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.interop import orbit

from benchmarks.broker import BROKER_NAME, PATIENCE_SECONDS, QUEUES, Cell, Load
from benchmarks.machine import about, compile_c, memory_at_hand, memory_of_machine_mb, page_faults, processor_seconds
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry, User
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command, request
from orbitmq.protocol.headers.admin import CreateTopic
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.transport.address import Address, parse_address
from orbitmq.transport.loop import run as run_loop
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interop.processes import Process

RESULTS: Final = Path(__file__).parent / "results" / "signed.json"
CELLS: Final = (Cell(16, 1), Cell(64, 1), Cell(4, 32), Cell(64, 1, body=100), Cell(4, 32, body=100))
WAYS: Final = {  # which broker, how the load generator is to send, and what it is to be compared with
    "unsigned": ("open", "send", "unsigned"),
    "users": ("users", "send-signed", "unsigned"),
    "files": ("files", "send-signed", "unsigned"),
    "unsigned, binary": ("open", "send-binary", "unsigned, binary"),
    "users, binary": ("users", "send-binary-signed", "unsigned, binary"),
    "files, binary": ("files", "send-binary-signed", "unsigned, binary"),
}
ROOT: Final = Credentials("root", "root-of-the-benchmark")
SENDER: Final = Credentials("the-sender", "sender-of-the-benchmark")
TOPIC: Final = "SignedTopic"
MESSAGES: Final = 1 << 16
WARM_UP_SECONDS: Final = 0.5
TURN_SECONDS: Final = 0.5
MEMORY_SHARE: Final = 0.25  # of the machine's, for a round of a cell
GUARDED: Final[dict[str, str | int]] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key}),
}
ACCESS_FILE: Final = f"""accounts:
- {{accessKey: root-account, secretKey: {ROOT.secret_key}, admin: true}}
- {{accessKey: {SENDER.access_key}, secretKey: {SENDER.secret_key}, topicPerms: [{TOPIC}=PUB]}}
"""


async def prepare(address: Address, root: Credentials) -> None:
    """The topic, and where there are users, the sender and its policy."""
    user = User(password=SENDER.secret_key).to_json()
    entry = PolicyEntry(resource=f"Topic:{TOPIC}", actions=["Pub"], decision="Allow")
    acl = Acl(subject=f"User:{SENDER.access_key}", policies=[Policy(entries=[entry])]).to_json()
    topic = CreateTopic(
        topic=TOPIC,
        default_topic="TBW102",
        read_queue_nums=QUEUES,
        write_queue_nums=QUEUES,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )
    pool = Pool(sign=partial(sign, credentials=root))
    without = (RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_CREATE_ACL) if root is not ROOT else ()
    try:
        for command in (
            Command(RequestCode.AUTH_CREATE_USER, fields={"username": SENDER.access_key}, body=user),
            Command(RequestCode.AUTH_CREATE_ACL, fields={"subject": acl.decode()}, body=acl),
            request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic),
        ):
            answer = await pool.call(address, command, PATIENCE_SECONDS)
            if answer.code and "access control is off" not in (answer.remark or "") and command.code not in without:
                raise SystemExit(f"{command}: {answer.remark}")
    finally:
        await pool.close()


@dataclass(frozen=True, slots=True)
class Kind:
    """Of a broker."""

    name_server: str
    settings: dict[str, str | int]
    root: Credentials = ROOT

    @contextmanager
    def started(self, folder: Path) -> Iterator[tuple[Address, Process]]:
        settings = {"mappedFileSizeCommitLog": 1 << 30, **self.settings}
        broker = orbit.start_broker(folder, self.name_server, BROKER_NAME, settings)
        try:
            address = parse_address(broker.address)
            run_loop(prepare(address, self.root))
            yield address, broker.process
        finally:
            broker.process.kill()  # nobody wants to wait until all of it is on the disk
            shutil.rmtree(folder)


def kinds(folder: Path, stack: ExitStack) -> dict[str, Kind]:
    """With their name servers, which run until the stack is closed."""
    open_names, guarded_names, filed_names = (
        orbit.start_name_server(folder / f"{name}-names", settings)
        for name, settings in (("open", {}), ("guarded", GUARDED), ("filed", {}))
    )
    for name_server in (open_names, guarded_names, filed_names):
        stack.callback(name_server.process.stop)
    home = folder / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCESS_FILE)
    return {
        "open": Kind(open_names.address, {}),
        "users": Kind(guarded_names.address, GUARDED),
        "files": Kind(
            filed_names.address,
            {"aclEnable": "true", "rocketmqHome": str(home)},
            Credentials("root-account", ROOT.secret_key),
        ),
    }


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each way, cell and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has it; results are not kept")
    options = parser.parse_args(argv)
    cells = [cell for cell in CELLS if options.only in cell.name]
    head = about(seconds=options.seconds, rounds=options.rounds)
    figures: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as base, ExitStack() as stack:
        folder = Path(base)
        load = Load(compile_c(folder, "load"))
        brokers = kinds(folder, stack)
        for number in range(options.rounds):
            for cell in cells:
                run_round(load, folder, brokers, cell, options.seconds, figures.setdefault(cell.name, {}), number)
    report(figures, head, keep=not options.only)


def run_round(
    load: Load,
    folder: Path,
    brokers: dict[str, Kind],
    cell: Cell,
    seconds: float,
    figures: dict[str, list[dict[str, float]]],
    number: int,
) -> None:
    turns = math.ceil(seconds / TURN_SECONDS)
    # In this order: what the brokers before had is taken before the machine's host takes it.
    with memory_at_hand(int(MEMORY_SHARE * memory_of_machine_mb())) as give_back, ExitStack() as stack:
        started = {name: stack.enter_context(kind.started(folder / name)) for name, kind in brokers.items()}
        # About as long again as it sends, the generator makes ready what it will send.
        give_back(2 * len(WAYS) * (WARM_UP_SECONDS + turns * TURN_SECONDS))
        for kind, mode, _ in WAYS.values():
            run_cell(load, mode, *started[kind], cell, WARM_UP_SECONDS)
        for turn in range(turns):
            for way, (kind, mode, _) in reversed(WAYS.items()) if (turn + number) % 2 else WAYS.items():
                figures.setdefault(way, []).append(run_cell(load, mode, *started[kind], cell, TURN_SECONDS))


def run_cell(load: Load, mode: str, address: Address, process: Process, cell: Cell, seconds: float) -> dict[str, float]:
    used, faults = processor_seconds(process.pid), page_faults(process.pid)
    who = (SENDER.access_key, SENDER.secret_key) if "signed" in mode else ()
    arguments = (TOPIC, QUEUES, cell.connections, cell.in_flight, cell.body, seconds)
    printed = load.run(mode, address, *arguments, behind=who, distinct=MESSAGES)
    if printed["errors"]:
        raise SystemExit(f"{cell.name}: {printed['errors']:.0f} sends were refused")
    return {
        "rate": printed["rate"],
        "processor_us": 1e6 * (processor_seconds(process.pid) - used) / printed["msgs"],
        "generator_us": printed["cpu"],
        "p99_ms": printed["p99"],
        "faults": (page_faults(process.pid) - faults) / printed["msgs"],
    }


def report(figures: dict[str, dict[str, list[dict[str, float]]]], head: dict[str, Any], *, keep: bool) -> None:
    medians = {
        cell: {
            way: {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
            for way, rounds in ways.items()
        }
        for cell, ways in figures.items()
    }
    print("| | | a second | processor us | generator's | of unsigned: rate | processor time |")
    print("|---" * 7 + "|")
    for cell, ways in medians.items():
        for way, (_, _, other) in WAYS.items():
            here, rounds, plain = ways[way], figures[cell][way], figures[cell][other]
            print(
                f"| {cell} | {way} | {here['rate']:,.0f} | {here['processor_us']:.1f} | {here['generator_us']:.1f} "
                f"| {share(rounds, plain, 'rate'):.2f} | {share(plain, rounds, 'processor_us'):.2f} |"
            )
    if keep:
        RESULTS.write_text(json.dumps({"machine": head, "medians": medians, "rounds": figures}, indent=2) + "\n")


def share(of: list[dict[str, float]], beside: list[dict[str, float]], figure: str) -> float:
    """Turn by turn: a machine that is slower for a while is so for both."""
    return statistics.median(one[figure] / other[figure] for one, other in zip(of, beside, strict=True))
