from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftkit.errors import BackendError, DataError
from ftkit.parallel.failures import (
    ERROR_FILE,
    LAUNCHER,
    Failure,
    account_of,
    failure_of,
    first_of,
    in_words,
    read_failures,
    report,
)

GLOO = "[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1. This is typically caused by a bug"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_our_error_keeps_its_words_and_code() -> None:
    failure = failure_of(raised(DataError("bad", where="a:1", help="mend")), 3)
    assert (failure.rank, failure.kind, failure.code, failure.text) == (3, "error", 3, "a:1: bad\nhelp: mend")


def test_a_bug_keeps_its_traceback() -> None:
    failure = failure_of(raised(ValueError("boo")), 0)
    assert failure.code == 1
    assert failure.text.startswith("Traceback (most recent call last)")
    assert failure.text.endswith("ValueError: boo")


@pytest.mark.parametrize(
    "error",
    [RuntimeError(GLOO), raised(BackendError("a step failed"), RuntimeError(GLOO))],
    ids=["bare", "wrapped"],
)
def test_a_connection_that_broke_is_anothers_failure(error: BaseException) -> None:
    failure = failure_of(error, 1)
    assert (failure.kind, failure.code) == ("lost", 5)
    assert failure.text.startswith(
        "rank 1: another rank is gone in the middle of an exchange, got "
        "[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1\nhelp: "
    )


def test_an_interruption_says_where_the_run_can_go_on() -> None:
    assert failure_of(KeyboardInterrupt("resume it"), 0).text == "interrupted; resume it"
    assert failure_of(KeyboardInterrupt(), 0).code == 130


def test_the_cause_comes_before_what_follows_from_it_whatever_the_clock_says() -> None:
    cause = Failure(2, "error", 3, "rows", at=9.0)
    others = [Failure(0, "lost", 5, "gone", at=1.0), Failure(1, "terminated", 143, "t", at=0.0)]
    assert first_of([*others, cause]) is cause
    earlier = Failure(3, "error", 4, "model", at=8.0)
    assert first_of([cause, earlier]) is earlier
    assert first_of([Failure(0, "lost", 5, "gone", at=1.0), Failure(1, "killed", 5, "k", at=2.0)]).kind == "killed"


def test_the_account_has_the_first_on_top_and_names_the_others() -> None:
    failures = [Failure(rank, "terminated", 143, "terminated") for rank in (0, 1, 2, 5)]
    failures += [Failure(4, "error", 3, "a:1: bad\nhelp: mend"), Failure(3, "lost", 5, "gone")]
    assert account_of(failures) == (
        "error: a:1: bad\nhelp: mend\n"
        "(this was rank 4; ranks 0-2, 5 ended after it; rank 3 lost it in the middle of an exchange)"
    )


def test_ranks_in_words() -> None:
    assert in_words([3]) == "rank 3"
    assert in_words([0, 2, 3, 4, 7]) == "ranks 0, 2-4, 7"


def folder_of(root: Path, rank: int) -> dict[str, str]:
    folder = root / "attempt_0" / str(rank)
    folder.mkdir(parents=True)
    return {ERROR_FILE: str(folder / "error.json")}


def test_the_first_failure_of_a_rank_stays_and_torch_can_read_it(tmp_path: Path) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    variables = folder_of(tmp_path, 0)
    report(Failure(0, "error", 3, "first", at=7.0), 2, variables)
    report(Failure(0, "terminated", 143, "second"), 2, variables)
    assert read_failures(tmp_path) == [Failure(0, "error", 3, "first", at=7.0)]
    theirs = ProcessFailure(local_rank=0, pid=1, exitcode=3, error_file=variables[ERROR_FILE])
    assert theirs.timestamp == 7
    assert theirs.error_file_data["message"]["message"] == "first"


def test_what_all_ranks_meet_is_said_once_and_what_one_meets_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(4):
        text = "other" if rank == 2 else "same"
        report(Failure(rank, "error", 3, text), 4, folder_of(tmp_path, rank))
    assert capsys.readouterr().err == "error: same\n(rank 0 of 4)\nerror: other\n(rank 2 of 4)\n"


def test_under_ftkit_train_the_launcher_speaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variables = {**folder_of(tmp_path, 0), LAUNCHER: "1"}
    report(Failure(0, "error", 3, "mine"), 2, variables)
    assert capsys.readouterr().err == ""
    report(Failure(1, "error", 3, "orphan"), 2, {**folder_of(tmp_path, 1), LAUNCHER: "1"}, launcher_gone=True)
    assert capsys.readouterr().err == "error: orphan\n(rank 1 of 2)\n"


def test_files_that_are_not_ours_are_passed_over(tmp_path: Path) -> None:
    for index, text in enumerate(["{", json.dumps({"message": "torch's own"})]):
        folder_of(tmp_path, index)
        (tmp_path / "attempt_0" / str(index) / "error.json").write_text(text)
    assert read_failures(tmp_path) == []
