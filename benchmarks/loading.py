"""Host memory and time of loading a model in 4 bit, ftkit against transformers' from_pretrained, on the CPU.

    PYTHONPATH=src python -m benchmarks.loading FOLDER [--repeats 3]      any model in Hugging Face format
    PYTHONPATH=src python -m benchmarks.loading --random 1b               a random Llama of 1.2 billion, made for it

Every load runs in a fresh process that has imported everything already. The parent samples the child's RssAnon (memory
that no file backs) every 2 ms from /proc; the peak is what loading adds to the level before. Both quantize to NF4
with double quantization, blocks of 64, and no adapter; the child prints a digest of all packed bytes, which must agree.
"packed MiB" are the bytes of quantized parameters: no loader can stay below them (transformers keeps the constants, 3 %
more, out of its parameters). RssAnon counts what malloc holds, too: from run to run transformers' level jumps.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig

SAMPLE_SECONDS = 0.002
SIZES: dict[str, dict[str, Any]] = {
    "1b": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
    }
}


def main() -> None:
    """Measure both tools in turn and print a table, or be one of the measured processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--random", choices=SIZES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", choices=LOADERS)
    arguments = parser.parse_args()
    if arguments.child:
        be_measured(arguments.child, arguments.folder)
    elif arguments.random:
        with tempfile.TemporaryDirectory() as folder:
            save_random(SIZES[arguments.random], Path(folder))
            compare(Path(folder), arguments.repeats)
    else:
        compare(arguments.folder, arguments.repeats)


def compare(folder: Path, repeats: int) -> None:
    """Run the tools alternately; print the median of each, and the ratios."""
    runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in LOADERS}
    for _ in range(repeats):
        for tool in LOADERS:
            runs[tool].append(measure(tool, folder))
    digests = {run["digest"] for results in runs.values() for run in results}
    median = {
        tool: {key: statistics.median(run[key] for run in results) for key in results[0] if key != "digest"}
        for tool, results in runs.items()
    }
    for tool, values in median.items():
        print(f"{tool:13}", "  ".join(f"{key} {value:.2f}" for key, value in values.items()))
    mine, theirs = median["ftkit"], median["transformers"]
    print("ftkit / transformers:", "  ".join(f"{key} {mine[key] / theirs[key]:.2f}" for key in mine))
    print("packed bytes equal" if len(digests) == 1 else f"PACKED BYTES DIFFER: {digests}")


def measure(tool: str, folder: Path) -> dict[str, Any]:
    """One load in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loading", str(folder), "--child", tool]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()  # everything is imported
        before = peak = anonymous_mib(child.pid)
        print("load", file=child.stdin, flush=True)
        while not select.select([child.stdout], [], [], SAMPLE_SECONDS)[0]:
            peak = max(peak, anonymous_mib(child.pid))
        after = anonymous_mib(child.pid)
        result: dict[str, Any] = json.loads(child.stdout.readline())
        print("end", file=child.stdin, flush=True)
        result["digest"] = child.stdout.readline().strip()
    return {"imports MiB": before, "peak MiB": peak - before, "held MiB": after - before, **result}


def anonymous_mib(pid: int) -> float:
    """RssAnon of a process now."""
    lines = Path(f"/proc/{pid}/status").read_text("utf8").splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)


def be_measured(tool: str, folder: Path) -> None:
    """Import, wait for the word, load, and say how long it took and what the packed bytes are."""
    load = LOADERS[tool](folder)
    print("ready", flush=True)
    sys.stdin.readline()
    wall, cpu = time.perf_counter(), time.process_time()
    net = load()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    packed = sum(p.numel() for p in net.parameters() if p.dtype == torch.uint8) / 2**20
    print(json.dumps({"packed MiB": packed, "wall s": wall, "CPU s": cpu}), flush=True)
    sys.stdin.readline()
    print(digest_of(net), flush=True)


def digest_of(net: nn.Module) -> str:
    """Of the packed weights of all quantized linears, by name."""
    hasher = hashlib.sha256()
    for name, parameter in sorted(net.named_parameters()):
        if parameter.dtype == torch.uint8 and name.endswith(".weight"):
            hasher.update(name.encode() + parameter.detach().contiguous().view(-1).numpy().tobytes())
    return hasher.hexdigest()[:16]


def load_by_ftkit(folder: Path) -> Callable[[], nn.Module]:
    """Plan, build, load; the adapter that a 4-bit recipe must have is left out of the plan."""
    from ftkit.model.build import build_net
    from ftkit.model.load import load_net
    from ftkit.model.nf4 import NF4Linear  # noqa: F401 - imported by the first load otherwise
    from ftkit.model.plan import plan_model
    from ftkit.recipe.section.adapter import AdapterSection
    from ftkit.recipe.section.model import ModelSection
    from ftkit.recipe.section.quantization import QuantizationSection

    def load() -> nn.Module:
        sections = (
            ModelSection(base_model=str(folder)),
            QuantizationSection(load_in_4bit=True),
            AdapterSection(adapter="qlora", lora_r=8, lora_target_linear=True),
        )
        plan = replace(plan_model(*sections), adapter=None, adapted=())
        net = build_net(plan, dtype=torch.bfloat16).requires_grad_(False)
        fill_root = load_net(
            net, plan, lambda block, fill: fill(block), device=torch.device("cpu"), dtype=torch.bfloat16
        )
        fill_root(net)
        return net

    return load


def load_by_transformers(folder: Path) -> Callable[[], nn.Module]:
    """`from_pretrained` with the same code and block size."""
    import bitsandbytes  # noqa: F401
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaForCausalLM  # noqa: F401

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return lambda: AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=config, dtype=torch.bfloat16, device_map={"": "cpu"}
    )


LOADERS: Mapping[str, Callable[[Path], Callable[[], nn.Module]]] = {
    "ftkit": load_by_ftkit,
    "transformers": load_by_transformers,
}


def save_random(sizes: Mapping[str, Any], folder: Path) -> None:
    """A random Llama in bf16, one file a layer, so that it is never whole in memory."""
    config = LlamaConfig(**sizes, architectures=["LlamaForCausalLM"], dtype="bfloat16")
    config.save_pretrained(folder)
    width, inner = config.hidden_size, config.intermediate_size
    kv = width // config.num_attention_heads * config.num_key_value_heads
    shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (kv, width),
        "self_attn.v_proj": (kv, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    files = {"root": {"model.embed_tokens": (config.vocab_size, width), "model.norm": (width,)}} | {
        f"layer-{n}": {f"model.layers.{n}.{name}": shape for name, shape in shapes.items()}
        for n in range(config.num_hidden_layers)
    }
    generator, index = torch.Generator().manual_seed(0), {}
    for name, tensors in files.items():
        file = f"{name}.safetensors"
        save_file(
            {
                f"{tensor}.weight": (torch.randn(shape, generator=generator) * width**-0.5).to(torch.bfloat16)
                for tensor, shape in tensors.items()
            },
            folder / file,
            metadata={"format": "pt"},
        )
        index.update({f"{tensor}.weight": file for tensor in tensors})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}), "utf8")


if __name__ == "__main__":
    main()
