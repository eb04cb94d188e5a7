"""Merging and stacking take about one tensor of memory, far less than the model; measured in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from ftkit.model.plain import plain_net
from ftkit.save.stream import TensorShape
from ftkit.save.whole_model import write_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is Linux's"),
]
MB = 10**6
SPEC = "merge_method: passthrough\nslices:\n" + "".join(
    f"  - sources: [{{{{model: {{model}}, layer_range: [{first}, {last}]}}}}]\n" for first, last in ((0, 12), (4, 16))
)


def random_model(folder: Path, **shape: int) -> int:
    """Write a model of random bf16 tensors, one in memory at a time; return its bytes."""
    config = LlamaConfig(vocab_size=32000, num_attention_heads=16, num_key_value_heads=4, **shape)
    state = {name: tuple(tensor.shape) for name, tensor in plain_net(config, dtype=torch.bfloat16).state_dict().items()}
    folder.mkdir()

    def read(names: list[str]) -> Iterator[tuple[str, Tensor]]:
        return ((name, torch.randn(state[name], dtype=torch.bfloat16).mul_(0.02)) for name in names)

    write_files(folder, {name: {name: TensorShape(shape, torch.bfloat16)} for name, shape in state.items()}, read)
    config.architectures, config.dtype = ["LlamaForCausalLM"], "bfloat16"
    config.save_pretrained(folder)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def adapter(folder: Path, **shape: int) -> None:
    """Write an adapter on every linear of the blocks, with a trained copy of both ends, as PEFT would."""
    config = LlamaConfig(vocab_size=32000, num_attention_heads=16, num_key_value_heads=4, **shape)
    net = plain_net(config, dtype=torch.float32)
    tensors = {}
    for name, module in net.named_modules():
        if name.startswith("model.layers.") and isinstance(module, torch.nn.Linear):
            tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(16, module.in_features)
            tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(module.out_features, 16)
    for name in ("model.embed_tokens", "lm_head"):
        tensors[f"base_model.model.{name}.weight"] = torch.randn(config.vocab_size, config.hidden_size)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    linears = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    LoraConfig(r=16, target_modules=linears, modules_to_save=["embed_tokens", "lm_head"]).save_pretrained(str(folder))


def memory_of(*words: str) -> int:
    """Bytes that an ftkit command takes beside its imports."""
    script = Path(__file__).with_name("measured.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, env=environment, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == 0, done.stderr
    return int(found["bytes"])


@pytest.mark.parametrize("faithful", [False, True])
def test_a_merge_takes_less_memory_than_a_shard(tmp_path: Path, faithful: bool) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24}
    size = random_model(tmp_path / "base", **shape)
    adapter(tmp_path / "adapter", **shape)
    more = ["--faithful", "load_in_4bit=true"] if faithful else []
    words = ["merge", str(tmp_path / "adapter"), "--base", str(tmp_path / "base"), "--out", str(tmp_path / "out")]
    taken = memory_of(*words, "--shard-size", "200MB", "--no-check", *more)
    print(f"merge: {taken / MB:.0f} MB for a model of {size / MB:.0f} MB")
    assert size > 600 * MB
    assert taken < 200 * MB
    assert sum(file.stat().st_size for file in (tmp_path / "out").glob("*.safetensors")) > 600 * MB


def test_a_stack_takes_less_memory_than_a_shard_and_a_half(tmp_path: Path) -> None:
    shape = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
    size = random_model(tmp_path / "model", **shape)
    (tmp_path / "spec.yml").write_text(SPEC.format(model=tmp_path / "model"), encoding="utf8")
    taken = memory_of("interleave", str(tmp_path / "spec.yml"), "--out", str(tmp_path / "out"), "--shard-size", "400MB")
    print(f"interleave: {taken / MB:.0f} MB for a model of {size / MB:.0f} MB")
    assert size > 2000 * MB
    assert taken < 600 * MB
    assert sum(file.stat().st_size for file in (tmp_path / "out").glob("*.safetensors")) > 2000 * MB
