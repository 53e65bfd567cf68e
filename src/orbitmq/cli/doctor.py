"""`orbitmq doctor`: what is wrong, step by step, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orbitmq.cli.choosing import fields_of
from orbitmq.cli.completing import group_option, topic_option
from orbitmq.cli.options import output_option, target_options
from orbitmq.cli.view import View, printable, rows_text

if TYPE_CHECKING:
    from orbitmq.admin.diagnosis import Finding
    from orbitmq.admin.session import Session
    from orbitmq.cli.options import Target

_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "failed": ("FAILED", "red")}


@click.command()
@topic_option(help="Look at this topic, too.")
@group_option(help="Look at this consumer group, too.")
@output_option
@target_options
def doctor(target: Target, topic: str | None, group: str | None, output: str) -> None:
    """Look at a cluster from here, step by step, and say what is wrong and how to mend it.

    Nothing is changed or sent. Exits with 1 if a step failed; warnings do not count.
    """

    async def look(session: Session) -> list[Finding]:
        from orbitmq.admin.diagnosis import diagnose

        findings = []
        async for finding in diagnose(session, topic=topic, group=group):
            findings.append(finding)
            if output == "table":
                _print(finding)
        return findings

    from orbitmq.admin.diagnosis import Finding

    findings = target.run(look)
    failed = sum(finding.verdict == "failed" for finding in findings)
    warnings = sum(finding.verdict == "warning" for finding in findings)
    if output == "table":
        counted = f"{warnings} warning{'' if warnings == 1 else 's'}"
        summary = f"{failed} failed, {counted}" if failed or warnings else "all is well"
        click.echo(f"\n{len(findings)} steps: {summary}")
    else:
        click.echo(rows_text(View(format=output), Finding, [fields_of(one) for one in findings]), nl=False)
    if failed:
        click.get_current_context().exit(1)


def _print(finding: Finding) -> None:
    word, color = _MARKS[finding.verdict]
    mark = click.style(f"{word:<7}", fg=color, bold=finding.verdict == "failed")
    click.echo(f"{mark}  {printable(finding.step)}: {printable(finding.found)}")
    if finding.cure:
        click.echo(f"         -> {printable(finding.cure)}")
