from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from standin import Run, documents, folder_names, make_run, section, tiny_llama, weights
from torch import nn

from ftkit.errors import CheckpointError
from ftkit.parallel.single import SingleBackend
from ftkit.save.checkpoint import Checkpoints, find_checkpoint
from ftkit.train.cadence import every
from ftkit.train.options import LoopOptions

IDENTITY = {"learning_rate": "0.01", "seed": "42"}


def kept_in(folder: Path, **keys: Any) -> Callable[[SingleBackend, nn.Module], Checkpoints]:
    return lambda backend, net: Checkpoints(folder, backend, **{"identity": IDENTITY, **keys})


def six_steps(folder: Path, optimizer: str, *, log_every: int = 1, net: nn.Module | None = None, **keys: Any) -> Run:
    """Two epochs of three steps, the last of each short, with dropout, saving and evaluating after every step."""
    return make_run(
        net or tiny_llama(lora_dropout=0.05),
        documents(10),
        evaluation=documents(3, seed=9),
        optimization=section(optimizer=optimizer, weight_decay=0.1),
        options=LoopOptions(save_at=every(1), evaluate_at=every(2), log_at=every(log_every)),
        checkpoints=kept_in(folder, **keys),
        micro_batch_size=2,
        accumulation=2,
        num_epochs=2,
    )


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_8bit"])
def test_resumed_at_every_step_is_as_if_it_had_never_stopped(tmp_path: Path, optimizer: str) -> None:
    whole = six_steps(tmp_path, optimizer, net=large_enough_for_8_bits())
    whole.trainer.run()
    assert len(whole.heard.logged) == 6
    if optimizer == "adamw_8bit":
        assert any("absmax1" in state for state in whole.trainer.optimizer.state.values())
    for step in range(1, 6):
        resumed = six_steps(tmp_path / "again", optimizer, net=large_enough_for_8_bits())
        resumed.trainer.run(resume=tmp_path / f"checkpoint-{step}")
        assert curve(resumed) == curve(whole)[step:]
        assert [e.eval_loss for e in resumed.heard.evaluated] == [
            e.eval_loss for e in whole.heard.evaluated if e.step > step
        ]
        for name, value in weights(whole.net).items():
            assert torch.equal(weights(resumed.net)[name], value), name
        shutil.rmtree(tmp_path / "again")


def large_enough_for_8_bits() -> nn.Module:
    """An adapter whose matrices bitsandbytes quantizes the states of (from 4096 elements)."""
    from peft import LoraConfig, inject_adapter_in_model

    net = tiny_llama()
    config = LoraConfig(r=128, lora_alpha=8, lora_dropout=0.05, target_modules=["q_proj", "down_proj"])
    inject_adapter_in_model(config, net)
    return net


def curve(run: Run) -> list[tuple[int, float, float, float, int]]:
    return [(e.step, e.loss, e.grad_norm, e.learning_rate, e.target_tokens) for e in run.heard.logged]


def test_a_logging_window_survives_a_stop_in_its_middle(tmp_path: Path) -> None:
    whole = six_steps(tmp_path, "adamw_torch", log_every=4)
    whole.trainer.run()
    resumed = six_steps(tmp_path / "again", "adamw_torch", log_every=4)
    resumed.trainer.run(resume=tmp_path / "checkpoint-2")
    assert curve(resumed) == curve(whole)


def test_only_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    six_steps(tmp_path, "sgd", limit=2).trainer.run()
    assert folder_names(tmp_path) == ["checkpoint-5", "checkpoint-6"]


def test_a_partial_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    six_steps(tmp_path, "sgd").trainer.run()
    (tmp_path / "checkpoint-6").rename(tmp_path / "checkpoint-6.partial")
    (tmp_path / "checkpoint-5" / "trainer_state.json").unlink()
    assert find_checkpoint(tmp_path, True) == tmp_path / "checkpoint-4"
    with pytest.raises(CheckpointError, match="the checkpoint is not whole"):
        find_checkpoint(tmp_path, str(tmp_path / "checkpoint-6.partial"))


def test_nothing_to_resume_is_an_error_unless_automatic(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path, None) is None
    assert find_checkpoint(tmp_path, None, auto=True) is None
    with pytest.raises(CheckpointError, match="no whole checkpoint to resume from"):
        find_checkpoint(tmp_path, True)


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    six_steps(tmp_path, "sgd").trainer.run()
    other = six_steps(tmp_path, "sgd", identity={"learning_rate": "0.02", "seed": "42", "new_key": "1"})
    with pytest.raises(CheckpointError) as caught:
        other.trainer.run(resume=tmp_path / "checkpoint-3")
    assert str(caught.value) == (
        f"{tmp_path / 'checkpoint-3'}: the checkpoint was made by another recipe\n"
        "  learning_rate: 0.01 then, 0.02 now\n"
        "help: change these keys back; to go on with other settings, start a new run whose lora_model_dir (adapter)"
        " or base_model (model) is the old output_dir"
    )


def test_a_checkpoint_of_another_net_is_refused(tmp_path: Path) -> None:
    six_steps(tmp_path, "sgd").trainer.run()
    other = six_steps(tmp_path, "sgd", net=tiny_llama())
    with pytest.raises(CheckpointError, match="does not fit the net") as caught:
        other.trainer.run(resume=tmp_path / "checkpoint-3")
    assert "not trained now: model.layers.0.self_attn.q_proj.lora_A.default.weight" in str(caught.value)


def test_saving_over_a_checkpoint_replaces_it(tmp_path: Path) -> None:
    six_steps(tmp_path, "sgd").trainer.run()
    resumed = six_steps(tmp_path, "sgd")
    resumed.trainer.run(resume=tmp_path / "checkpoint-3")
    assert folder_names(tmp_path) == [f"checkpoint-{step}" for step in range(1, 7)]
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["state"]["step"] == 6


def test_resuming_a_finished_run_trains_nothing(tmp_path: Path) -> None:
    whole = six_steps(tmp_path, "sgd")
    whole.trainer.run()
    again = six_steps(tmp_path, "sgd")
    outcome = again.trainer.run(resume=tmp_path / "checkpoint-6")
    assert (outcome.steps, outcome.reason, again.heard.logged) == (6, "done", [])
    assert all(torch.equal(weights(again.net)[name], value) for name, value in weights(whole.net).items())


def junk(folder: Path, name: str, text: str) -> Path:
    """A folder called like a checkpoint, with this for its trainer_state.json."""
    (folder / name).mkdir()
    (folder / name / "trainer_state.json").write_text(text, encoding="utf8")
    return folder / name


OF_TRANSFORMERS = json.dumps({"global_step": 900, "log_history": []})


def test_other_folders_are_passed_over_and_named(tmp_path: Path) -> None:
    six_steps(tmp_path, "sgd", limit=2).trainer.run()
    junk(tmp_path, "checkpoint-900", OF_TRANSFORMERS)
    junk(tmp_path, "checkpoint-901", "[]")
    junk(tmp_path, "checkpoint-902", json.dumps({"format": 1, "written": 1e12, "identity": {}}))
    junk(tmp_path, "checkpoint-903", "{")
    (tmp_path / "checkpoint-904").touch()
    told: list[CheckpointError] = []
    assert find_checkpoint(tmp_path, None, on_skip=told.append) is None
    assert told == []
    for keys in ({"resume": True}, {"resume": None, "auto": True}):
        told.clear()
        assert find_checkpoint(tmp_path, on_skip=told.append, **keys) == tmp_path / "checkpoint-6"
        assert sorted(Path(str(problem.where)).parent.name for problem in told[1:]) == [
            f"checkpoint-{number}" for number in range(900, 904)
        ]
    six_steps(tmp_path, "sgd", limit=2).trainer.run()
    assert folder_names(tmp_path) == ["checkpoint-5", "checkpoint-6", *(f"checkpoint-{n}" for n in range(900, 905))]


def test_anothers_checkpoint_of_the_same_name_is_kept(tmp_path: Path) -> None:
    junk(tmp_path, "checkpoint-6", OF_TRANSFORMERS)
    junk(tmp_path, "checkpoint-6.other", OF_TRANSFORMERS)
    six_steps(tmp_path, "sgd", limit=1).trainer.run()
    assert folder_names(tmp_path) == ["checkpoint-6", "checkpoint-6.other", "checkpoint-6.other-2"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "the checkpoint is not one of ftkit's"),
        (OF_TRANSFORMERS, "the checkpoint is not one of ftkit's"),
        ('{"format": 1}', "the checkpoint is broken, it lacks written, identity, state"),
        ('{"format": 2}', "the checkpoint has format 2, this ftkit reads 1"),
    ],
)
def test_a_broken_checkpoint_that_is_asked_for_is_an_error(tmp_path: Path, text: str, told: str) -> None:
    folder = junk(tmp_path, "checkpoint-1", text)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(tmp_path, str(folder))
    assert (caught.value.what, caught.value.where) == (told, str(folder / "trainer_state.json"))


@pytest.mark.parametrize("content", [b"", b"junk", b"\x80\x04]\x94.", b"cnowhere\nx\n."])
def test_a_broken_table_of_shards_is_an_error(tmp_path: Path, content: bytes) -> None:
    six_steps(tmp_path, "sgd", limit=1).trainer.run()
    (tmp_path / "checkpoint-6" / "shards" / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="the shards' table of contents cannot be read") as caught:
        six_steps(tmp_path, "sgd").trainer.run(resume=tmp_path / "checkpoint-6")
    assert caught.value.help == "resume from another checkpoint"
