from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from model_zoo import ARCHITECTURES, Saved, fill, net_of, packed, plan_of, reference
from safetensors.torch import load_file, save_file
from torch import nn

from ftkit.errors import ModelError
from ftkit.model.build import build_net
from ftkit.model.checkpoint_files import open_weights
from ftkit.model.naming import owner


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_from_pretrained(saved: Saved, name: str) -> None:
    folder = saved(name)
    row = packed([11])
    with torch.no_grad():
        mine = net_of(folder).eval()(**row).logits
        theirs = reference(folder)(input_ids=row["input_ids"]).logits
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen2-moe", "gpt2"])
def test_every_parameter_equals_from_pretrained_bit_for_bit(saved: Saved, name: str) -> None:
    mine, theirs = net_of(saved(name), dtype=torch.bfloat16), reference(saved(name), torch.bfloat16)
    for key, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[key], value), key


def test_sharded_checkpoint_loads(saved: Saved, tmp_path: Path) -> None:
    net = reference(saved("llama"))
    net.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    for key, value in net_of(tmp_path).state_dict().items():
        assert torch.equal(value, net.state_dict()[key])


def test_tied_head_is_the_embedding(saved: Saved) -> None:
    net = net_of(saved("llama-tied"))
    assert net.lm_head.weight is net.model.embed_tokens.weight


def test_tied_checkpoint_may_hold_the_head_only(saved: Saved, tmp_path: Path) -> None:
    folder = edited(saved("llama-tied"), tmp_path, rename={"model.embed_tokens.weight": "lm_head.weight"})
    assert torch.equal(net_of(folder).model.embed_tokens.weight, reference(saved("llama-tied")).lm_head.weight)


def test_tied_checkpoint_with_two_different_tables_is_refused(saved: Saved, tmp_path: Path) -> None:
    folder = edited(saved("llama-tied"), tmp_path, add={"lm_head.weight": torch.zeros(97, 32)})
    with pytest.raises(ModelError, match=r"lm_head.weight that differs from model.embed_tokens.weight"):
        net_of(folder)


def test_one_error_lists_all_missing_unexpected_and_misshapen_tensors(saved: Saved, tmp_path: Path) -> None:
    folder = edited(
        saved("llama"),
        tmp_path,
        rename={"model.layers.1.mlp.up_proj.weight": "model.layers.1.mlp.upp_proj.weight"},
        add={"model.norm.weight": torch.zeros(33)},
    )
    plan = plan_of(folder)
    with pytest.raises(ModelError) as caught:
        fill(build_net(plan, dtype=torch.float32), plan)
    assert str(caught.value) == (
        "base_model: the checkpoint does not fit LlamaForCausalLM\n"
        "  missing: model.layers.1.mlp.up_proj.weight\n"
        "  unexpected: model.layers.1.mlp.upp_proj.weight\n"
        "  misshapen: model.norm.weight, got (33,), expected (32,)\n"
        "help: check that config.json belongs to these weights, and model_config in the recipe"
    )


def test_old_rotary_tables_in_the_file_are_ignored(saved: Saved, tmp_path: Path) -> None:
    folder = edited(saved("llama"), tmp_path, add={"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    net_of(folder)


def test_folder_without_weights_and_missing_shard_are_clear(saved: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    shutil.copy(saved("llama") / "config.json", folder)
    with pytest.raises(ModelError, match=r"no weights there, neither model.safetensors nor"):
        net_of(folder)
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"are missing, got model-00001-of-00002.safetensors"):
        net_of(folder)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2"])
def test_a_longer_tokenizer_grows_the_vocabulary_by_mean_rows(saved: Saved, name: str) -> None:
    net, old = net_of(saved(name), tokenizer_length=100), reference(saved(name))
    table, before = net.get_input_embeddings().weight, old.get_input_embeddings().weight
    assert table.shape == (100, 32)
    assert net.config.vocab_size == 100
    assert net.get_output_embeddings().weight.shape == (100, 32)
    assert torch.equal(table[:97], before)
    torch.testing.assert_close(table[97:], before.mean(0).expand(3, -1))


def test_a_shorter_tokenizer_shrinks_nothing(saved: Saved) -> None:
    assert net_of(saved("llama"), tokenizer_length=50).lm_head.weight.shape == (97, 32)


def test_adapters_do_not_depend_on_what_was_drawn_before(saved: Saved) -> None:
    torch.manual_seed(5)
    first = net_of(saved("llama"), adapter="lora")
    second = net_of(saved("llama"), adapter="lora", lora_target_modules=("up_proj",))
    name = "model.layers.1.mlp.up_proj.lora_A.default.weight"
    a = first.get_parameter(name)
    assert torch.equal(a, second.get_parameter(name))
    assert a.dtype == torch.float32
    assert not torch.equal(a, first.get_parameter(name.replace("layers.1", "layers.0")))
    assert a.abs().max() <= 32**-0.5
    assert first.get_parameter(name.replace("lora_A", "lora_B")).abs().max() == 0


def test_parameters_own_their_memory(saved: Saved) -> None:
    """None is a view into the file's pages or into another parameter."""
    net = net_of(saved("phi3"), adapter="qlora", load_in_4bit=True)
    starts = [p.untyped_storage().data_ptr() for p in net.parameters()]
    assert len(set(starts)) == len(starts)
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in net.parameters())


def mapped(net: nn.Module, folder: Path) -> set[str]:
    """Names of the parameters whose values are pages of a file in `folder`."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text("utf8").splitlines() if str(folder) in line]
    areas = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
    return {n for n, p in net.named_parameters() if any(start <= p.data_ptr() < end for start, end in areas)}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_frozen_weights_stay_pages_of_the_file_and_trained_ones_do_not(saved: Saved) -> None:
    folder = saved("llama")
    assert mapped(net_of(folder), folder) == set()
    net = net_of(folder, adapter="lora", lora_modules_to_save=("lm_head",))
    kept = mapped(net, folder)
    assert "model.embed_tokens.weight" in kept
    assert not {n for n, p in net.named_parameters() if p.requires_grad} & kept
    assert mapped(net_of(folder, adapter="lora", dtype=torch.bfloat16), folder) == set()  # the file is in float32


def test_training_writes_neither_to_the_file_nor_to_frozen_weights(saved: Saved) -> None:
    folder = saved("llama")
    before = (folder / "model.safetensors").read_bytes()
    net = net_of(folder, adapter="lora", lora_modules_to_save=("lm_head",))
    frozen = {n: p.detach().clone() for n, p in net.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1)
    net(**packed([9])).logits.square().sum().backward()
    optimizer.step()
    assert all(torch.equal(net.get_parameter(n), value) for n, value in frozen.items())
    with torch.no_grad():
        net.model.embed_tokens.weight.zero_()  # whoever writes all the same has a page of his own
    assert (folder / "model.safetensors").read_bytes() == before


def test_names_lead_through_wrappers(saved: Saved) -> None:
    net = net_of(saved("llama"), adapter="lora", lora_modules_to_save=("lm_head",))
    assert owner(net, "lm_head.weight")[0] is net.lm_head.original_module
    assert owner(net, "model.layers.0.mlp.up_proj.weight")[0] is net.model.layers[0].mlp.up_proj.base_layer


def edited(
    folder: Path, to: Path, *, rename: dict[str, str] | None = None, add: dict[str, torch.Tensor] | None = None
) -> Path:
    """A copy of a saved model with some tensors renamed and some put in."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    tensors = {(rename or {}).get(name, name): value for name, value in tensors.items()} | (add or {})
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty\nhelp: download"),
        (
            b"garbage, and more of it than a header's length",
            "not a whole safetensors file .*got 46 bytes\nhelp: download",
        ),
        (POINTER, "a git-lfs pointer, not the weights\nhelp: run `git lfs pull`"),
        (None, "not a whole safetensors file .*\nhelp: download"),
    ],
    ids=["empty", "garbage", "pointer", "cut off"],
)
def test_a_file_of_weights_that_is_not_one_is_clear(
    saved: Saved, tmp_path: Path, content: bytes | None, text: str
) -> None:
    folder, adapter = tmp_path / "model", tmp_path / "adapter"
    shutil.copytree(saved("llama"), folder)
    file = folder / "model.safetensors"
    content = file.read_bytes()[:-100] if content is None else content
    file.write_bytes(content)
    with pytest.raises(ModelError, match=text) as caught:
        net_of(folder)
    assert caught.value.where == str(file)
    plan = plan_of(saved("llama"), adapter="lora")
    assert plan.adapter is not None
    adapter.mkdir()
    plan.adapter.save_pretrained(adapter)
    (adapter / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=text):
        net_of(saved("llama"), adapter="lora", lora_model_dir=str(adapter))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", r"the index is not JSON with a weight_map .*\(JSONDecodeError: .*\nhelp: download"),
        (b"[]", "the index is not JSON with a weight_map"),
        (b'{"weight_map": {"a": 1}}', "the index is not JSON with a weight_map"),
        (b"\xff", "the index is not JSON with a weight_map"),
        (POINTER, "the index is a git-lfs pointer\nhelp: run `git lfs pull`"),
    ],
)
def test_an_index_that_is_none_is_clear(saved: Saved, tmp_path: Path, content: bytes, text: str) -> None:
    shutil.copy(saved("llama") / "config.json", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(ModelError, match=text):
        net_of(tmp_path)


def test_weights_of_a_silent_hub_are_missed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelError, match=r"base_model: someone/absent-model: the weights are not .*HF_HUB_OFFLINE is set"
    ):
        open_weights("someone/absent-model", None)


@pytest.mark.parametrize("how", ["one file", "index", "before torch 1.6"])
def test_files_of_torch_load_as_safetensors_do(saved: Saved, tmp_path: Path, how: str) -> None:
    shutil.copy(saved("llama") / "config.json", tmp_path)
    values = load_file(saved("llama") / "model.safetensors")
    names = sorted(values)
    if how == "index":
        parts = {"pytorch_model-1.bin": names[:5], "pytorch_model-2.bin": names[5:]}
        index = {"weight_map": {name: file for file, inside in parts.items() for name in inside}}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    else:
        parts = {"pytorch_model.bin": names}
    for file, inside in parts.items():
        new = how != "before torch 1.6"
        torch.save({n: values[n] for n in inside}, tmp_path / file, _use_new_zipfile_serialization=new)
    net = net_of(tmp_path)
    for key, value in net_of(saved("llama")).state_dict().items():
        assert torch.equal(net.state_dict()[key], value), key


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("code out of weights runs",)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"weight": Evil()}, "holds more than tensors; ftkit runs no code"),
        ({"weight": 3}, "must hold tensors by name and nothing else"),
        (b"garbage", "not a whole torch file .*got 7 bytes"),
        (b"", "the file is empty"),
        (POINTER, "git-lfs pointer, not the weights\nhelp: run `git lfs pull`"),
    ],
    ids=["code", "number", "garbage", "empty", "pointer"],
)
def test_a_file_of_torch_that_is_not_one_of_weights_is_clear(
    saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, text: str
) -> None:
    shutil.copy(saved("llama") / "config.json", tmp_path)
    file = tmp_path / "pytorch_model.bin"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(ModelError, match=text):
        net_of(tmp_path)
    assert capsys.readouterr().out == ""
