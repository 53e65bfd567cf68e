"""Which fault is done to whom, when and for how long: all of it from a seed, so that it can be done again."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.faults.cluster import Mode

FIRST_SECONDS: Final = 3.0  # everybody has found everybody
LAST_SECONDS: Final = 3.0  # before the end no fault begins any more
REST_SECONDS: Final = 6.0  # for one target between two faults: it has to come back first
POWER_APART_SECONDS: Final = 12.0  # an asynchronous flush is done by then


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    weight: int
    shortest: float
    longest: float
    of_name_servers: bool = False
    loses_power: bool = False


KINDS: Final = (
    Kind("kill", 4, 0.1, 4.0),
    Kind("power cut", 3, 0.1, 4.0, loses_power=True),
    Kind("freeze", 3, 0.3, 6.0),
    Kind("cut connections", 3, 0.0, 0.1),
    Kind("refuse connections", 2, 0.5, 5.0),
    Kind("stall connections", 2, 0.5, 6.0),
    Kind("full disk", 2, 0.5, 4.0),
    Kind("failing sync", 2, 0.3, 2.0, loses_power=True),
    Kind("wrong clock", 2, 0.5, 6.0),
    Kind("promotion", 1, 0.0, 2.0, loses_power=True),
    Kind("name server killed", 2, 0.5, 8.0, of_name_servers=True),
)
KIND_OF: Final = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Fault:
    at: float  # seconds after the start
    kind: str
    target: int  # which broker, or which name server; 0 is the master of that moment
    seconds: float
    seed: int  # for what chance decides within it

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.kind} of {self.target} for {self.seconds:.1f} s"


def make_plan(seed: int, seconds: float, mode: Mode, *, brokers: int = 3, name_servers: int = 3) -> list[Fault]:
    chance = Random(f"plan {seed}")
    possible = [kind for kind in KINDS if _is_promised(kind, mode)]
    plan: list[Fault] = []
    at, power_at = FIRST_SECONDS, -POWER_APART_SECONDS
    free_at: dict[tuple[bool, int], float] = {}
    while at < seconds - LAST_SECONDS:
        kind = chance.choices(possible, [kind.weight for kind in possible])[0]
        target = chance.randrange(name_servers if kind.of_name_servers else brokers)
        lasting, inner = chance.uniform(kind.shortest, kind.longest), chance.randrange(1, 1 << 30)
        pause = chance.uniform(0.3, 4.0)
        if at < free_at.get((kind.of_name_servers, target), 0.0):
            at += pause / 4
            continue
        if kind.loses_power and not mode.flushes:
            if at < power_at + POWER_APART_SECONDS:
                at += pause / 4
                continue  # two machines without power at once are more than this mode promises to survive
            power_at = at
        free_at[kind.of_name_servers, target] = at + lasting + REST_SECONDS
        plan.append(Fault(round(at, 2), kind.name, target, round(lasting, 2), inner))
        at += pause
    return plan


def _is_promised(kind: Kind, mode: Mode) -> bool:
    """Without copies nobody can take the master's place."""
    return mode.copies or kind.name != "promotion"
