"""`python -m benchmarks [name [options]]`: one benchmark, or all of them one after the other. `-h` after a name shows its options.

A benchmark is a module of this package with `run(argv)`. Results are printed and kept under benchmarks/results/.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

NAMES: Final = (
    "broker", "broker_scale", "catch_up", "client", "cores", "growth", "flapping", "kinds", "nameserver", "overload", "signed", "spark", "store",
    "timers", "transactions",
)  # fmt: skip


def main(argv: list[str]) -> None:
    if not argv:
        for name in NAMES:
            print(f"== {name}")
            import_module(f"benchmarks.{name}").run([])
        return
    name, *rest = argv
    if name not in NAMES:
        sys.exit(f"no benchmark is called {name}; there are: {', '.join(NAMES)}")
    import_module(f"benchmarks.{name}").run(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
