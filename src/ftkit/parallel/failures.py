"""How a rank ended, written where its launcher reads it, and told so that a person hears every failure once.

torchrun, accelerate and `ftkit train` give each rank a file for its error (TORCHELASTIC_ERROR_FILE). A rank writes its
failure there, in torch's format with ours beside it, and the first failure stays: what follows from it is no news.
Under `ftkit train` the launcher speaks; under the others the ranks of a node agree by a file who says what.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from ftkit.errors import BackendError, FtkitError

LAUNCHER = "FTKIT_LAUNCHER_PID"  # set by `ftkit train` for the ranks it starts
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
NEWS_SECONDS = 3.0  # in which a failure that was told is heard by every rank, and shows by itself where it does
INTERRUPTED = 130  # exit code of Ctrl-C
GLOO_SIGNS = ("gloo/transport/", "Connection closed by peer", "Connection reset by peer")
KILLED_HELP = "look at what ended it: dmesg tells of the kernel's out-of-memory killer, a scheduler has its own log"
# Kinds of failure, the likeliest cause first: an exception of the rank's own; no progress; killed from outside; the
# error of another rank, as told by it; another rank gone in the middle of an exchange; ended because others had.
KINDS = ("error", "stalled", "killed", "followed", "lost", "terminated")
WORDS: Mapping[str, str] = {
    "error": "failed too",
    "stalled": "did not move either",
    "killed": "got killed",
    "followed": "ended after it",
    "lost": "lost it in the middle of an exchange",
    "terminated": "ended after it",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """How one rank ended.

    Args:
        kind: one of KINDS.
        code: exit code of the rank, and of the run where this is its first failure.
        text: all that is to be said: a message with its help, or a traceback.
        at: seconds since the epoch.
    """

    rank: int
    kind: str
    code: int
    text: str
    at: float = field(default_factory=time.time)


def failure_of(error: BaseException, rank: int) -> Failure:
    """What an exception that ends a rank is to the others."""
    if isinstance(error, KeyboardInterrupt):
        code = getattr(error, "exit_code", INTERRUPTED)
        word = "interrupted" if code == INTERRUPTED else "terminated"
        return Failure(rank, "terminated", code, "; ".join([word, *map(str, error.args)]))
    if lost := next(filter(is_lost_peer, causes_of(error)), None):
        words = str(lost).splitlines()[0].partition(". This is typically")[0]
        text = f"rank {rank}: another rank is gone in the middle of an exchange, got {words}"
        return Failure(rank, "lost", BackendError.exit_code, f"{text}\nhelp: {KILLED_HELP}")
    if isinstance(error, FtkitError):
        return Failure(rank, "error", error.exit_code, str(error))
    return Failure(rank, "error", 1, "".join(traceback.format_exception(error)).rstrip())


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and what it was raised from or while handling."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_lost_peer(error: BaseException) -> bool:
    """Whether torch says that a rank at the other end is gone; gloo has no class of its own for that."""
    named = any(kind.__name__ in {"DistBackendError", "DistNetworkError"} for kind in type(error).__mro__)
    return named or (isinstance(error, RuntimeError) and any(sign in str(error) for sign in GLOO_SIGNS))


def report(failure: Failure, num_ranks: int, variables: Mapping[str, str], *, launcher_gone: bool = False) -> None:
    """Write a rank's first failure for the launcher, and say it unless somebody else does."""
    file = variables.get(ERROR_FILE)
    if file and not write_once(Path(file), json.dumps(as_torch_has_it(failure))):
        return
    if (LAUNCHER not in variables or launcher_gone) and (not file or claim(Path(file).parent.parent, failure)):
        sys.stderr.write(f"{headed(failure)}\n(rank {failure.rank} of {num_ranks})\n")
        sys.stderr.flush()


def headed(failure: Failure) -> str:
    """The text of a failure as it is printed; tracebacks and interruptions speak for themselves."""
    plain = failure.kind == "terminated" or failure.text.startswith("Traceback")
    return failure.text if plain else f"error: {failure.text}"


def as_torch_has_it(failure: Failure) -> dict[str, Any]:
    """The record in the form of torch.distributed.elastic's error files, for torchrun's own report."""
    extra = {"py_callstack": failure.text, "timestamp": str(int(failure.at))}
    return {"message": {"message": failure.text, "extraInfo": extra}, "ftkit": asdict(failure)}


def write_once(file: Path, text: str) -> bool:
    """Write a file whole unless it is there; return whether this call wrote it."""
    whole = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        whole.write_text(text, encoding="utf8")
        os.link(whole, file)
    except OSError:  # it is there, or the launcher has taken its folder away
        return False
    finally:
        with contextlib.suppress(OSError):
            whole.unlink()
    return True


def claim(folder: Path, failure: Failure) -> bool:
    """Whether this rank is the one of its node that says this: the first with the text, or with what only follows."""
    of_its_own = failure.kind in {"error", "killed"}
    about = hashlib.sha256((failure.text if of_its_own else failure.kind).encode()).hexdigest()[:16]
    try:
        (folder / f"said-{about}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # better twice than never
        return True
    return True


def read_failures(folder: Path) -> list[Failure]:
    """The failures that ranks wrote below a launcher's folder."""
    found = []
    for file in sorted(folder.rglob("error.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found.append(Failure(**json.loads(file.read_text(encoding="utf8"))["ftkit"]))
    return found


def first_of(failures: Sequence[Failure]) -> Failure:
    """The one that the others follow from."""
    return min(failures, key=lambda failure: (KINDS.index(failure.kind), failure.at))


def account_of(failures: Sequence[Failure]) -> str:
    """The first failure on top, and how every other rank ended."""
    first = first_of(failures)
    others = [failure for failure in failures if failure.rank != first.rank]
    named = [f"this was rank {first.rank}"]
    for word in dict.fromkeys(WORDS[failure.kind] for failure in others):
        ranks = in_words([failure.rank for failure in others if WORDS[failure.kind] == word])
        named.append(f"{ranks} {word}")
    return f"{headed(first)}\n({'; '.join(named)})"


def in_words(ranks: Sequence[int]) -> str:
    """`ranks 0, 2-7`."""
    runs = [
        [rank for _, rank in run] for _, run in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0])
    ]
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"
