"""One command a file; each module offers `add_parser(subparsers)` and `run(arguments) -> exit code`."""
