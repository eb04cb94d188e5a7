from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftkit.errors import BackendError
from ftkit.parallel.zero_config import deepspeed_dict, stage_of
from ftkit.recipe.deepspeed import WELL_KNOWN, well_known

SHIPPED = [str(path) for path in (Path(__file__).resolve().parents[2] / "deepspeed_configs").glob("*.json")]


def given(**more: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 2, **more.pop("zero", {})}, **more}


def test_there_are_shipped_files() -> None:
    assert len(SHIPPED) >= 4


def test_clipping_is_always_written() -> None:
    assert deepspeed_dict(given())["gradient_clipping"] == 0.0
    assert deepspeed_dict(given(gradient_clipping="auto"), max_norm=0.5)["gradient_clipping"] == 0.5


def test_accumulation_and_precision_are_the_loops() -> None:
    numbers = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 16}
    made = deepspeed_dict(given(**numbers, bf16={"enabled": True}, fp16={"enabled": "auto", "loss_scale": 0}))
    assert (made["train_micro_batch_size_per_gpu"], made["gradient_accumulation_steps"]) == (1, 1)
    assert not made.keys() & {"train_batch_size", "bf16", "fp16"}


def test_numbers_are_passed_on_and_auto_means_the_default() -> None:
    zero = {"stage3_max_live_parameters": 1e9, "overlap_comm": True, "stage3_prefetch_bucket_size": "auto"}
    made = deepspeed_dict(given(zero=zero, prescale_gradients=True))["zero_optimization"]
    assert made["stage3_max_live_parameters"] == 10**9
    assert isinstance(made["stage3_max_live_parameters"], int)
    assert made["overlap_comm"] is True
    assert "stage3_prefetch_bucket_size" not in made


def test_every_weight_is_sharded_unless_the_recipe_says_otherwise() -> None:
    name = "stage3_param_persistence_threshold"
    assert deepspeed_dict(given())["zero_optimization"][name] == 0
    assert deepspeed_dict(given(zero={name: "auto"}))["zero_optimization"][name] == 0
    assert deepspeed_dict(given(zero={name: 1000}))["zero_optimization"][name] == 1000


@pytest.mark.parametrize(("num_trained", "bucket"), [(1_000, 1_000), (10**10, 5 * 10**8)])
def test_no_bucket_is_larger_than_what_is_trained(num_trained: int, bucket: int) -> None:
    made = deepspeed_dict(given(zero={"reduce_bucket_size": "auto"}), num_trained=num_trained)
    assert made["zero_optimization"]["reduce_bucket_size"] == bucket


def test_offloading_does_not_ask_for_a_compiler() -> None:
    made = deepspeed_dict(given(zero={"offload_optimizer": {"device": "cpu", "pin_memory": True}}))
    assert made["zero_force_ds_cpu_optimizer"] is False
    assert made["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


def test_the_old_word_for_offloading_is_understood() -> None:
    assert deepspeed_dict(given(zero={"cpu_offload": True}))["zero_optimization"]["offload_optimizer"] == {
        "device": "cpu"
    }


@pytest.mark.parametrize("name", [*WELL_KNOWN, *SHIPPED])
def test_every_well_known_and_every_shipped_file_is_taken_by_deepspeed(name: str) -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    config = json.loads(Path(name).read_text()) if name in SHIPPED else well_known(name)
    assert config is not None
    made = deepspeed_dict(config)["zero_optimization"]
    assert int(DeepSpeedZeroConfig(**made).stage) == stage_of(config)


def test_all_that_cannot_be_served_is_said_at_once() -> None:
    zero = {
        "zero_quantized_weights": True,
        "zero_hpz_partition_size": 8,
        "mics_shard_size": 2,
        "compute_grad_norm": False,
        "offload_param": {"device": "nvme", "nvme_path": "/disk"},
    }
    with pytest.raises(BackendError) as caught:
        deepspeed_dict(given(zero=zero, optimizer={"type": "AdamW"}, sparse_attention={"mode": "fixed"}))
    assert str(caught.value) == (
        "deepspeed: ftkit does not serve these DeepSpeed keys\n"
        "  optimizer: a mapping (the recipe's optimizer is used)\n"
        "  sparse_attention: a mapping\n"
        "  zero_optimization.zero_quantized_weights: true (it would round the weights of every layer once more)\n"
        "  zero_optimization.zero_hpz_partition_size: 8\n"
        "  zero_optimization.mics_shard_size: 2\n"
        "  zero_optimization.compute_grad_norm: false (the norm is reported and checked in every step)\n"
        "  zero_optimization.offload_param.device: nvme (weights and states are kept on GPUs or in host memory)\n"
        "help: take them out of the DeepSpeed configuration"
    )


def test_keys_that_ask_for_nothing_are_no_error() -> None:
    zero = {"zero_quantized_weights": False, "zero_hpz_partition_size": 1, "compute_grad_norm": True}
    idle = {"activation_checkpointing": {"partition_activations": False}, "amp": {"enabled": False, "level": "O1"}}
    assert "amp" not in deepspeed_dict(given(zero=zero, **idle))
