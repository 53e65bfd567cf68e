"""`python -m orbitmq` is the `orbitmq` command."""

from orbitmq.cli.entry import main

main()
