"""What was seen, as a page of Markdown with figures and a picture: acknowledged sends by the second, and the faults beneath."""

from __future__ import annotations

import platform
from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Final

from tests.faults.cluster import MODES
from tests.faults.outcome import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.faults.outcome import Outcome

_WIDTH: Final = 1100
_LEFT: Final = 150
_PLOT_HEIGHT: Final = 140
_LANE_HEIGHT: Final = 16
_LONGEST_COMPLAINT: Final = 300
_COLOURS: Final = {
    "kill": "#c0392b", "power cut": "#7b241c", "freeze": "#2e86c1", "cut connections": "#b7950b",
    "refuse connections": "#d68910", "stall connections": "#f0b27a", "full disk": "#7d3c98", "failing sync": "#a569bd",
    "wrong clock": "#16a085", "promotion": "#000000", "name server killed": "#707b7c",
}  # fmt: skip


def write_report(path: Path, title: str, outcomes: Sequence[Outcome], more: Sequence[str] = ()) -> None:
    """`path` is the Markdown page; its picture stands beside it."""
    picture = path.with_suffix(".svg")
    picture.write_text(timeline_plot(outcomes))
    lines = [f"# {title}", "", *more, "", f"![Sends and faults over time]({picture.name})", ""]
    for mode in dict.fromkeys(outcome.mode for outcome in outcomes):
        lines += _of_mode(mode, [outcome for outcome in outcomes if outcome.mode == mode])
    complaints = [f"seed {outcome.seed}, {complaint}" for outcome in outcomes for complaint in outcome.first_of_each()]
    if complaints:
        lines += ["## What was broken", ""]
        lines += [f"- {complaint[:_LONGEST_COMPLAINT]}" for complaint in complaints] + [""]
    lines += [
        "## Each life",
        "",
        "| seed | mode | seconds | faults | acknowledged | broken |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {outcome.seed} | {outcome.mode} | {outcome.seconds:.0f} | {outcome.faults().total()} "
        f"| {outcome.figures['sends acknowledged']:,} | {len(outcome.broken)} |"
        for outcome in outcomes
    ]
    lines += ["", f"Python {platform.python_version()}, {platform.system()} {platform.release()}."]
    path.write_text("\n".join(lines) + "\n")


def _of_mode(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    mode = MODES[name]
    figures, rules, faults = Counter[str](), Counter[str](), Counter[str]()
    for outcome in outcomes:
        figures.update(outcome.figures)
        rules.update(outcome.by_rule())
        faults.update(outcome.faults())
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    latencies = sorted(taken for outcome in outcomes for taken in outcome.timeline.latencies_ms)
    lines = [f"## {mode.flush}, {mode.role}: {minutes:.0f} minutes in {len(outcomes)} lives", ""]
    lines += ["| Faults | |", "|---|---|", *(f"| {kind} | {count} |" for kind, count in faults.most_common()), ""]
    lines += ["| What must not be | seen |", "|---|---|"]
    lines += [f"| {meaning} | {rules[rule]} |" for rule, meaning in RULES.items()]
    excused = sum(outcome.excused_losses for outcome in outcomes)
    if not mode.flushes and not mode.copies:
        lines.append(f"| lost in power cuts, within what this mode says (no violation) | {excused} |")
    lines += ["", "| What was done | |", "|---|---|"]
    lines += [f"| {what} | {count:,} |" for what, count in figures.items()]
    if latencies:
        at = {percent: latencies[min(len(latencies) - 1, int(len(latencies) * percent / 100))] for percent in (50, 99)}
        lines.append(
            f"| latency of acknowledged sends: half / 99 % / worst | {at[50]:.1f} / {at[99]:.1f} / {latencies[-1]:.0f} ms |"
        )
    return [*lines, ""]


def timeline_plot(outcomes: Sequence[Outcome]) -> str:
    """One strip a life, one after the other on the same axis."""
    total = sum(outcome.seconds for outcome in outcomes) or 1.0
    lanes = sorted({event.target for outcome in outcomes for event in outcome.timeline.events})
    top = 30 + _LANE_HEIGHT * (1 + len(_COLOURS) // 6)
    height = top + _PLOT_HEIGHT + _LANE_HEIGHT * len(lanes) + 40
    most = max((second.acked for outcome in outcomes for second in outcome.timeline.seconds.values()), default=1) or 1
    scale = (_WIDTH - _LEFT - 20) / total
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="0" y="15" font-weight="bold">Acknowledged sends a second (at most {most}), and faults</text>',
        *_legend(),
    ]
    base, start = top + _PLOT_HEIGHT, 0.0
    for outcome in outcomes:
        points = []
        for second in range(int(outcome.seconds)):
            acked = outcome.timeline.seconds[second].acked
            x = _LEFT + (start + second) * scale
            points.append(f"{x:.1f},{base - _PLOT_HEIGHT * acked / most:.1f}")
        parts.append(f'<polyline fill="none" stroke="#2f6fb2" points="{" ".join(points)}"/>')
        parts.append(
            f'<line x1="{_LEFT + start * scale:.1f}" x2="{_LEFT + start * scale:.1f}" y1="{top}" y2="{height - 20}" stroke="#ddd"/>'
        )
        for event in outcome.timeline.events:
            ended = min(event.ended, outcome.seconds)
            x, width = _LEFT + (start + event.begun) * scale, max(1.0, (ended - event.begun) * scale)
            y = base + 6 + _LANE_HEIGHT * lanes.index(event.target)
            colour = _COLOURS.get(event.kind, "#888")
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_LANE_HEIGHT - 4}" fill="{colour}">'
                f"<title>{escape(event.kind)} at {event.begun:.1f} s, seed {outcome.seed}</title></rect>"
            )
        start += outcome.seconds
    parts += [
        f'<text x="0" y="{base + 16 + _LANE_HEIGHT * number}">{escape(lane)}</text>'
        for number, lane in enumerate(lanes)
    ]
    parts += [
        f'<text x="{_LEFT + total * share * scale:.0f}" y="{height - 6}">{total * share / 60:.0f} min</text>'
        for share in (0.0, 0.25, 0.5, 0.75, 0.97)
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> list[str]:
    parts = []
    for number, (kind, colour) in enumerate(_COLOURS.items()):
        x, y = 150 * (number % 6), 24 + _LANE_HEIGHT * (number // 6)
        parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{y + 9}">{escape(kind)}</text>')
    return parts
