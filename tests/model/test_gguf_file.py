from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_zoo import SIZES, Saved, net_of, packed, plan_of
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftkit.errors import ModelError
from ftkit.model.embedded import resolve_base_model

gguf = pytest.importorskip("gguf")
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTKIT_CACHE", str(tmp_path / "cache"))


def interleaved(weight: Tensor, num_heads: int) -> Tensor:
    """Rows of a rotary projection in llama.cpp's order: the halves of each head's pairs beside each other."""
    width = weight.shape[1]
    return weight.view(num_heads, 2, -1, width).transpose(1, 2).reshape(-1, width)


def write_gguf(folder: Path, file: Path, dtype: torch.dtype = torch.float32) -> Path:
    """The tiny Llama of `folder` in llama.cpp's format, with a vocabulary of single letters."""
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(SIZES["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    letters = [*(chr(33 + index) for index in range(SIZES["vocab_size"] - 4)), '!"']
    writer.add_token_list(["<pad>", "<s>", "</s>", *letters])
    writer.add_token_types([3, 3, 3, *[1] * len(letters)])
    writer.add_token_merges(['! "'])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in load_file(folder / "model.safetensors").items():
        if "q_proj" in name or "k_proj" in name:
            heads = SIZES["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            value = interleaved(value, heads)
        parts = name.removesuffix(".weight").removeprefix("model.layers.").split(".", 1)
        to = f"blk.{parts[0]}.{NAMES[parts[1]]}" if parts[0].isdigit() else NAMES[name.removesuffix(".weight")]
        writer.add_tensor(f"{to}.weight", value.to(dtype if value.dim() > 1 else torch.float32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("named", ["by base_model", "by gguf_file"])
def test_the_model_equals_the_original_and_what_transformers_reads(saved: Saved, tmp_path: Path, named: str) -> None:
    file = write_gguf(saved("llama"), tmp_path / "tiny.gguf")
    keys = {"gguf_file": "tiny.gguf"} if named == "by gguf_file" else {}
    net, original = net_of(tmp_path if keys else file, **keys), net_of(saved("llama"))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    for name, value in original.named_parameters():
        assert torch.equal(net.get_parameter(name), value), name
        assert torch.equal(theirs.get_parameter(name), value), name
    row = packed([11])
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(**row).logits, theirs(input_ids=row["input_ids"]).logits)


def test_it_is_converted_once_and_anew_when_it_changes(saved: Saved, tmp_path: Path) -> None:
    file = write_gguf(saved("llama"), tmp_path / "tiny.gguf")
    first = Path(resolve_base_model(str(file)))
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve_base_model(str(file)) == str(first)
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    tokenizer = AutoTokenizer.from_pretrained(first)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    write_gguf(saved("llama"), file, torch.float16)
    second = Path(resolve_base_model(str(file)))
    assert second != first
    weights = load_file(second / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float16}


def test_it_can_be_quantized_as_any_other(saved: Saved, tmp_path: Path) -> None:
    file = write_gguf(saved("llama"), tmp_path / "tiny.gguf")
    keys = {"adapter": "qlora", "load_in_4bit": True}
    net, original = net_of(file, **keys), net_of(saved("llama"), **keys)
    assert all(torch.equal(net.get_parameter(name), value) for name, value in original.named_parameters())


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        plan_of(tmp_path, gguf_file="absent.gguf")
    assert str(caught.value) == (
        "gguf_file: absent.gguf: no such GGUF file\n"
        "help: base_model names its folder on this machine; download it from the hub first"
    )
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"not a model" * 10)
    with pytest.raises(ModelError, match="cannot decode this GGUF file") as caught:
        plan_of(file)
    assert str(caught.value).endswith("help: use the model's own checkpoint in Hugging Face format")
    assert not [path for path in (tmp_path / "cache").glob("models/*") if path.is_dir()]
