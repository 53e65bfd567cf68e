"""docs/configuration.md, made from the code: `python -m tests.configuration_reference` writes it, a test compares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from orbitmq.broker import settings_explained as broker
from orbitmq.broker.java_settings import WITHOUT_EFFECT
from orbitmq.configuration import TLS_EXPLAINED
from orbitmq.nameserver import settings_explained as name_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orbitmq.settings_reference import SettingRow

PAGE: Final = Path(__file__).parent.parent / "docs" / "configuration.md"
_INTRODUCTION: Final = """# Configuration

Made from the code by `make docs`. `orbitmq broker --explain 'flush*'` and `orbitmq nameserver --explain '*'` say the same.

A server reads a file of `key=value` lines, Apache's keys (`orbitmq broker -c broker.conf`, `orbitmq nameserver -c
namesrv.properties`); `--set key=value` wins over the file. `-p` prints every setting in force. A key that is none is named in the
log, with the nearest that is one. A value that cannot be keeps the server from starting; but a number of Apache's in the file that is
out of bounds is brought into them, and the log names both (not ports, ids and sizes of files).

**Changed** says whether `orbitmq broker config BROKER key=value` (or `mqadmin updateBrokerConfig`, `updateNamesrvConfig`) may change
it while the server runs, and when that counts. What is changed so is saved in the file.
"""


def page() -> str:
    parts = [_INTRODUCTION, "\n## Broker\n", *_tables(broker.rows())]
    names = ", ".join(f"`{name}`" for name in sorted(WITHOUT_EFFECT))
    parts.append(
        f"\n### Accepted and shown, without effect\n\nSettings of Apache's thread pools, RocksDB, tiered store, controller: {names}.\n"
    )
    parts += ["\n## Name server\n", *_tables(name_server.rows())]
    parts.append("\n## TLS, on both\n\n| Key | Default | Meaning |\n|---|---|---|\n")
    parts += [f"| `{key}` | {_code(row.default)} | {row.meaning} |\n" for key, row in TLS_EXPLAINED.items()]
    return "".join(parts)


def _tables(rows: Iterable[SettingRow]) -> Iterator[str]:
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            yield f"\n### {section}\n\n| Key | Type | Default | Unit | Changed | Meaning |\n|---|---|---|---|---|---|\n"
        yield (
            f"| `{row.key}` | {row.type} | {_code(row.default)} | {row.unit} | {row.change_counts} | {row.meaning} |\n"
        )


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page())
