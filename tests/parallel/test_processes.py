"""Real processes come to real harm; `stand_in.py` is what they run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftkit.errors import BackendError, FtkitError, RecipeError
from ftkit.parallel import processes
from ftkit.parallel.failures import Failure
from ftkit.parallel.processes import Layout, choose_layout, ending_of, is_rank, run_processes, stopped_by

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
LIMIT_SECONDS = 30  # in which every process must be gone


@pytest.fixture(autouse=True)
def source_on_path(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(root / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def run(folder: Path, *words: str) -> processes.Ending:
    return run_processes(Layout(2), [STAND_IN, words[0], words[1], str(folder), *words[2:]])


def alive(folder: Path) -> list[int]:
    """Ranks that still run."""
    pids = {int(file.name.removeprefix("pid-")): int(file.read_text()) for file in folder.glob("pid-*")}
    assert pids, "no rank began"
    return [rank for rank, pid in pids.items() if Path(f"/proc/{pid}").exists()]


def test_all_is_well(tmp_path: Path) -> None:
    assert run(tmp_path, "none", "0") == processes.Ending(0, "")
    assert alive(tmp_path) == []


def test_our_error_is_said_as_on_one_process_and_keeps_its_code(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ending = run(tmp_path, "data", "1")
    assert ending.code == 3
    said, _, named = ending.text.rpartition("\n")
    assert said == "error: rows.jsonl:3: the rows are bad, got 7\nhelp: mend them"
    assert named.startswith("(this was rank 1; rank 0 ")
    assert alive(tmp_path) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_rank_that_was_killed_is_named_before_those_that_lost_it(tmp_path: Path) -> None:
    ending = run(tmp_path, "kill", "0")
    assert ending.code == 5
    assert ending.text.startswith("error: rank 0: killed by SIGKILL\nhelp: ")
    assert ending.text.splitlines()[-1].startswith("(this was rank 0; rank 1 ")
    assert alive(tmp_path) == []


def test_a_rank_that_hangs_ends_the_run_with_the_stacks_of_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ending = run(tmp_path, "hang", "1", "3")
    assert ending.code == 5
    assert "nothing has moved for 3 s, the last here was step 1" in ending.text
    assert f"{tmp_path}/stacks-rank-*.txt" in ending.text
    assert 'stand_in.py", line' in (tmp_path / "stacks-rank-1.txt").read_text()
    assert "in come_to" in (tmp_path / "stacks-rank-1.txt").read_text()
    assert "in all_reduce" in (tmp_path / "stacks-rank-0.txt").read_text()
    shown = capfd.readouterr().err
    assert "rank 0|   File" in shown
    assert "rank 1|   File" in shown
    assert alive(tmp_path) == []


@pytest.mark.slow
def test_a_bug_keeps_its_traceback_and_a_silent_end_its_code(tmp_path: Path) -> None:
    ending = run(tmp_path, "bug", "1")
    assert ending.code == 1
    assert ending.text.startswith("Traceback (most recent call last)")
    assert "ZeroDivisionError: a bug of ours\n(this was rank 1; " in ending.text
    ending = run(tmp_path, "exit", "0")
    assert ending.code == 9
    assert ending.text.startswith("error: rank 0: ended without a word, with exit code 9\n")


NODE = """
import os, sys
from ftkit.cli.main import guarded
from ftkit.parallel.processes import Layout, run_processes
def main():
    ending = run_processes(Layout(*eval(sys.argv[1])), sys.argv[2:])
    print(ending.text, file=sys.stderr)
    return ending.code
sys.exit(guarded(main))
"""


def start(layout: Layout, *command: str) -> subprocess.Popen[str]:
    """A launcher in a process of its own."""
    values = (layout.processes, layout.nodes, layout.node_rank, layout.rendezvous, layout.seconds)
    words = [sys.executable, "-c", NODE, repr(values), STAND_IN, *command]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


def wait_for_steps(folder: Path, *launchers: subprocess.Popen[str]) -> None:
    """Until both ranks have exchanged something."""
    end = time.monotonic() + 60
    while not all((folder / f"stepped-{rank}").exists() for rank in (0, 1)):
        assert time.monotonic() < end, [launcher.poll() for launcher in launchers]
        time.sleep(0.1)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def wait_for_ranks(folder: Path, seconds: float) -> None:
    """Until no rank runs."""
    end = time.monotonic() + seconds
    while alive(folder):
        assert time.monotonic() < end, f"ranks {alive(folder)} still run"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_ends_ranks_that_wait_for_ever_in_c(tmp_path: Path, number: signal.Signals) -> None:
    launcher = start(Layout(2), "stuck", "0", str(tmp_path))
    wait_for_steps(tmp_path, launcher)
    time.sleep(1)  # for both to be stuck
    launcher.send_signal(number)
    _, said = launcher.communicate(timeout=LIMIT_SECONDS)
    assert launcher.returncode == 128 + number
    assert said.splitlines()[-1].startswith("terminated" if number == signal.SIGTERM else "interrupted")
    assert alive(tmp_path) == []


def test_ranks_do_not_outlive_a_launcher_that_is_killed(tmp_path: Path) -> None:
    launcher = start(Layout(2), "forever", "0", str(tmp_path))
    wait_for_steps(tmp_path, launcher)
    launcher.kill()
    _, said = launcher.communicate(timeout=LIMIT_SECONDS)
    wait_for_ranks(tmp_path, LIMIT_SECONDS)
    assert "its launcher is gone, the run cannot go on alone" in said


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killing_the_launcher_of_a_node_ends_the_other_with_a_clear_error(tmp_path: Path, killed: int) -> None:
    address = free_address()
    nodes = [start(Layout(1, 2, rank, address, 60), "forever", "0", str(tmp_path)) for rank in (0, 1)]
    wait_for_steps(tmp_path, *nodes)
    nodes[killed].kill()
    _, said = nodes[1 - killed].communicate(timeout=LIMIT_SECONDS)
    assert nodes[1 - killed].returncode == 5
    held_the_store = f"rank 1: the launcher or rank that holds the run's store at {address} is gone, got "
    assert said.startswith(f"error: {held_the_store if killed == 0 else 'rank 1: its launcher is gone, '}")
    nodes[killed].communicate(timeout=LIMIT_SECONDS)
    wait_for_ranks(tmp_path, LIMIT_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("numbered", [True, False])
def test_two_nodes_run_and_each_says_the_error_of_either(tmp_path: Path, numbered: bool) -> None:
    for harm, code, said in (("none", 0, ""), ("data", 3, "rows.jsonl:3: the rows are bad, got 7\nhelp: mend them\n")):
        address = free_address()
        layouts = [Layout(1, 2, rank if numbered else None, address, 60) for rank in (0, 1)]
        nodes = [start(layout, harm, "0", str(tmp_path)) for layout in layouts]
        for node in nodes:
            _, text = node.communicate(timeout=90)
            assert node.returncode == code
            assert said in text
    assert alive(tmp_path) == []


def test_a_node_that_nobody_joins_says_so(tmp_path: Path) -> None:
    address = free_address()
    with pytest.raises(BackendError) as caught:
        run_processes(Layout(1, 2, 0, address, 2), [STAND_IN, "none", "0", str(tmp_path)])
    assert str(caught.value).startswith(f"{address}: the nodes did not find each other, got ")
    assert "started within 2 s of each other" in str(caught.value)


def test_under_torchrun_what_all_ranks_meet_is_said_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [STAND_IN, "early", "0", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    ours = "error: rows.jsonl:3: the rows are bad, got 7\nhelp: mend them\n(rank "
    assert done.stderr.count(ours) == 1, done.stderr


def test_ranks_that_said_nothing_are_read_off_their_exit() -> None:
    told = [Failure(0, "lost", 5, "rank 0: gone", at=1.0)]
    ending = ending_of(told, {0: (5, 1.0), 1: (-11, 2.0), 2: (-15, 3.0), 3: (143, 3.0)})
    assert ending.code == 5
    assert ending.text.startswith("error: rank 1: killed by SIGSEGV\n")
    assert ending.text.endswith(
        "(this was rank 1; rank 0 lost it in the middle of an exchange; ranks 2-3 ended after it)"
    )


def test_a_stopped_run_speaks_in_rank_0s_words() -> None:
    told = [Failure(1, "terminated", 143, "terminated"), Failure(0, "terminated", 143, "terminated; resume it")]
    assert stopped_by(signal.SIGTERM, told) == processes.Ending(143, "terminated; resume it")
    assert stopped_by(signal.SIGINT, []) == processes.Ending(130, "interrupted")


@pytest.mark.parametrize(
    ("gpus", "processes_asked", "expected"), [(0, None, 1), (0, 3, 3), (1, None, 1), (8, None, 8), (8, 2, 2)]
)
def test_one_process_a_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, processes_asked: int | None, expected: int
) -> None:
    monkeypatch.setattr(processes, "num_gpus", lambda: gpus)
    layout = choose_layout(processes_asked)
    assert layout.processes == expected
    assert layout.several is (expected > 1)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (
            (3,),
            5,
            "command line: one process a GPU: 2 visible, got --processes 3\nhelp: --processes 2, or look",
        ),
        ((1, 2), 2, "command line: several nodes must know where they meet, got --nnodes 2\nhelp: --rdzv HOST:PORT"),
        ((1, 1, 0, "a:1"), 2, "command line: one node meets nobody, got --rdzv a:1\nhelp: give --nnodes N too"),
        ((1, 1, 1), 2, "command line: one node meets nobody, got --node-rank 1\nhelp: give --nnodes N too"),
        ((1, 2, 2, "a:1"), 2, "command line: --node-rank is not below --nnodes 2, got 2\nhelp: 0 to 1, each on one"),
        ((1, 2, 0, "a"), 2, "command line: --rdzv must be HOST:PORT, got a\nhelp: as in --rdzv node0:29500"),
    ],
)
def test_a_layout_that_cannot_be_is_an_error(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[int, ...], code: int, text: str
) -> None:
    monkeypatch.setattr(processes, "num_gpus", lambda: 2)
    with pytest.raises(FtkitError) as caught:
        choose_layout(*arguments)
    assert str(caught.value).startswith(text)
    assert caught.value.exit_code == code
    assert isinstance(caught.value, RecipeError | BackendError)


def test_a_process_of_a_launcher_starts_no_others() -> None:
    assert is_rank({"WORLD_SIZE": "1"})
    assert is_rank({"ACCELERATE_MIXED_PRECISION": "no"})
    assert not is_rank(dict.fromkeys(os.environ.keys() - {"WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"}, ""))
