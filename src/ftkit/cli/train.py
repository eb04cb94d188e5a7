"""`ftkit train recipe.yml [key=value ...]`, which accelerate launch and torchrun run as `-m ftkit.train` too."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ftkit.cli.quiet import quiet_imports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftkit.recipe import Recipe

DESCRIPTION = """\
Run a recipe, in one process a GPU. On a machine with several GPUs, and with --processes or --nnodes, ftkit starts the
processes itself; under torchrun or accelerate launch (`... -m ftkit.train recipe.yml`) it is one of theirs.

Several nodes: the same command on each, for instance
  ftkit train recipe.yml --nnodes 2 --node-rank 0 --rdzv node0:29500
  ftkit train recipe.yml --nnodes 2 --node-rank 1 --rdzv node0:29500
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `train` to the commands."""
    raw = argparse.RawDescriptionHelpFormatter
    add_arguments(subparsers.add_parser("train", help="run a recipe", description=DESCRIPTION, formatter_class=raw))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `train`, shared with `python -m ftkit.train`."""
    parser.add_argument("recipe", help="the YAML file")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="a recipe key; dots go deeper, nothing after = means absent"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # of python -m ftkit.train
    group = parser.add_argument_group("processes")
    group.add_argument(
        *("--processes", "--num-processes", "--num_processes", "--nproc-per-node", "--nproc_per_node"),
        dest="processes",
        metavar="N",
        type=positive,
        help="processes on this node; one a visible GPU if it is not given, one without a GPU",
    )
    group.add_argument("--nnodes", metavar="N", type=positive, default=1, help="nodes of the run, 1 if not given")
    group.add_argument(
        *("--node-rank", "--node_rank"),
        dest="node_rank",
        metavar="R",
        type=int,
        help="which of them this is, from 0; rank 0 must be the host of --rdzv. Numbered as they come if not given",
    )
    group.add_argument(
        *("--rdzv", "--rdzv-endpoint", "--rdzv_endpoint"),
        dest="rendezvous",
        metavar="HOST:PORT",
        help="where the nodes meet: one of them, and a port that is free there",
    )
    group.add_argument(
        *("--rdzv-timeout", "--rdzv_timeout"),
        dest="seconds",
        metavar="SECONDS",
        type=positive,
        default=900,
        help="how long to wait for the other nodes, 900 if not given",
    )


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Load the recipe and run it here, or start the processes that do; return the exit code."""
    # torch's C++ side warns, with stacks in hexadecimal, when a connection ends; what that means is said in words.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from ftkit.parallel.processes import is_rank

    if not is_rank(os.environ):
        return run_alone(arguments)
    refuse_options(arguments)
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        return run_here(load(arguments))
    from ftkit.cli.rank import as_rank

    return as_rank(lambda: run_here(load(arguments)), os.environ)


def run_alone(arguments: argparse.Namespace) -> int:
    """Without a launcher: be one, unless one process here is all there is to start."""
    from ftkit.parallel.launcher import refuse_tasks

    refuse_tasks(arguments.nnodes)
    recipe = load(arguments)
    if arguments.here and arguments.processes is None and arguments.nnodes == 1:
        return run_here(recipe)
    from ftkit.parallel.processes import choose_layout, run_processes

    layout = choose_layout(
        arguments.processes, arguments.nnodes, arguments.node_rank, arguments.rendezvous, arguments.seconds
    )
    if not layout.several:
        return run_here(recipe)
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        os.environ["PYTHONSAFEPATH"] = "1"  # -m would let files of the working directory hide modules
    ending = run_processes(layout, ["-m", "ftkit.train", arguments.recipe, *arguments.overrides])
    if ending.text:
        print(ending.text, file=sys.stderr)
    return ending.code


def refuse_options(arguments: argparse.Namespace) -> None:
    """Refuse to start processes under a launcher that has.

    Raises:
        RecipeError: an option asks for it.
    """
    if arguments.processes or arguments.nnodes > 1 or arguments.rendezvous or arguments.node_rank is not None:
        from ftkit.errors import RecipeError

        raise RecipeError(
            "a launcher has started this process; --processes, --nnodes, --node-rank and --rdzv would start others",
            where="command line",
            help="give the numbers to the launcher, or run ftkit train without one",
        )


def load(arguments: argparse.Namespace) -> Recipe:
    """The recipe, with the command line's changes."""
    import ftkit

    return ftkit.load_recipe(arguments.recipe, arguments.overrides)


def run_here(recipe: Recipe) -> int:
    """Run the recipe in this process; return 0."""
    # Read by OpenMP when torch is loaded: threads that wait spin this often, then sleep. By default they spin so long
    # that a run crawls as soon as others want the cores. Measured on two cores, 300 small products: quiet 0.70 s
    # against 0.86 s by default; beside three busy processes 3.0 s against 4.6 s.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    quiet_imports()

    from ftkit.run import run as run_recipe

    run_recipe(recipe)
    return 0


def module_main(argv: Sequence[str] | None = None) -> int:
    """Entry of `python -m ftkit.train`: as `ftkit train`, but in this one process unless others are asked for."""
    from ftkit.cli.main import main

    return main(["train", "--here", *(sys.argv[1:] if argv is None else argv)])
