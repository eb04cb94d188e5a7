"""The `ftkit` command: `ftkit COMMAND ...`.

Only the module of the command that was typed is imported, and none of them imports torch before it has to, so that
`ftkit check` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from ftkit.errors import FtkitError

COMMANDS: Mapping[str, tuple[str, str]] = {
    "train": ("ftkit.cli.train", "run a recipe"),
    "check": ("ftkit.cli.check", "say everything that is wrong with recipes, without running them"),
    "prepare": ("ftkit.cli.prepare", "prepare the data of a recipe and report what is trained"),
    "preprocess": ("ftkit.cli.prepare", "the same as prepare"),
    "preview": ("ftkit.cli.preview", "show rows as a run sees them, tokens coloured by what is trained"),
    "merge": ("ftkit.cli.merge", "merge an adapter into its base, into a model of its own"),
    "interleave": ("ftkit.cli.interleave", "stack layers of models into a deeper one"),
    "migrate": ("ftkit.cli.migrate", "rewrite an old recipe in today's dialect"),
    "schema": ("ftkit.cli.schema", "write the JSON schema of recipes, for editors"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        return _overview(words)
    command = importlib.import_module(COMMANDS[words[0]][0])
    parser = argparse.ArgumentParser(prog="ftkit")
    command.add_parser(parser.add_subparsers(required=True))
    return guarded(lambda: command.run(parsed(parser, words)))


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The command line, with `key=value` and files to check after options too, which argparse would not take."""
    arguments, rest = parser.parse_known_args(words)
    if not rest:
        return arguments
    taken = next((name for name in ("overrides", "words") if hasattr(arguments, name)), None)
    if taken is None or any(word.startswith("-") or (taken == "overrides" and "=" not in word) for word in rest):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    setattr(arguments, taken, [*getattr(arguments, taken), *rest])
    return arguments


def guarded(run: Callable[[], int]) -> int:
    """Run `run()`; what a user can mend becomes a message on stderr and an exit code, a bug keeps its traceback."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGTERM, terminate)
        return run()
    except FtkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever read our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as stop:
        word, code = ("terminated", Terminated.exit_code) if isinstance(stop, Terminated) else ("interrupted", 130)
        print("; ".join([word, *map(str, stop.args)]), file=sys.stderr)
        return code
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class Terminated(KeyboardInterrupt):
    """SIGTERM: what a scheduler sends before it kills."""

    exit_code = 143


def terminate(number: int, frame: object) -> NoReturn:
    """Handle SIGTERM as Ctrl-C is."""
    raise Terminated


def _overview(words: Sequence[str]) -> int:
    """Print the list of commands; with a word that is none of them, say so."""
    asked_for_help = bool(words) and words[0] in {"-h", "--help", "help"}
    if words and not asked_for_help:
        print(f"error: no command {words[0]!r}\nhelp: one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    print("usage: ftkit COMMAND ...\n")
    for name, (_, summary) in COMMANDS.items():
        print(f"  {name:10} {summary}")
    print("\n`ftkit COMMAND --help` says more.")
    return 0 if asked_for_help else 2


if __name__ == "__main__":
    sys.exit(main())
