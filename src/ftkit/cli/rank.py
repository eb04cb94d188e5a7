"""`ftkit train` as one rank of several: what it says, it says once for all of them."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import NoReturn

from ftkit.parallel.failures import failure_of, report


def as_rank(run: Callable[[], int], variables: Mapping[str, str]) -> int:
    """Run `run()`; a failure is written for the launcher, said once a node, and ends this process with its code."""
    rank, size = int(variables.get("RANK", 0)), int(variables.get("WORLD_SIZE", 1))
    if rank > 0:
        keep_quiet()
    try:
        return run()
    except (Exception, KeyboardInterrupt) as error:
        failure = failure_of(error, rank)
        report(failure, size, variables)
        leave(failure.code)


def keep_quiet() -> None:
    """Leave warnings and progress bars of the libraries to rank 0, which meets the same ones."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def leave(code: int) -> NoReturn:
    """End at once. The interpreter's own way out waits for threads that may wait for ranks that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
