"""Fill a net on meta from safetensors, one block at a time.

For each block: read its tensors (mmap), quantize one after the other on the device, initialise its adapters, and hand
the finished block to the backend, which keeps or shards it before the next one is read. The peak is one block beside
what is already placed, on the device and on the host, for every backend. What no block holds (embeddings, last norm,
head) comes last, as the `fill` of `backend.finish`.

Adapters are drawn from a generator seeded by the parameter's own name, so they are the same at any world size, in any
order, on any device.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ftkit.errors import ModelError
from ftkit.model.checkpoint_files import Weights, open_weights
from ftkit.model.continued import read_adapter, table_names
from ftkit.model.dora import magnitudes
from ftkit.model.loftq import correction
from ftkit.model.naming import ADAPTER, PEFT_PREFIX, adapter_files, is_adapter, owner, peft_name
from ftkit.model.origins import find_origins
from ftkit.model.plan import ModelPlan, ParameterPlan
from ftkit.model.prequantized import PackedWeight
from ftkit.model.quantized import QuantizedLinear
from ftkit.model.trained_rows import DELTA, TrainedRows

Fill = Callable[[nn.Module], None]
PlaceBlock = Callable[[nn.Module, Fill], None]


def load_net(
    net: PreTrainedModel,
    plan: ModelPlan,
    place_block: PlaceBlock,
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 42,
) -> Fill:
    """Fill and place every block of `net`, and return the function that fills the rest (for `backend.finish`).

    Args:
        net: from `build_net`, on meta.
        plan: what `net` was built from.
        device: where the weights go; quantization runs there too.
        place_block: the backend's; called once a block, in order of execution.
        dtype: of float parameters, as given to `build_net`.
        seed: of the adapter's initial values.

    Raises:
        ModelError: before anything is read, naming all missing, unexpected and misshapen tensors.
    """
    loader = Loader(net, plan, device=device, dtype=dtype, seed=seed)
    for block in plan.blocks:
        place_block(net.get_submodule(block.name), loader.block_filler(block.name, block.parameters))
    return loader.fill_root


class Loader:
    """The open checkpoint and what each of the net's parameters is made of."""

    def __init__(
        self, net: PreTrainedModel, plan: ModelPlan, *, device: torch.device, dtype: torch.dtype, seed: int
    ) -> None:
        self.net, self.plan, self.device, self.dtype, self.seed = net, plan, device, dtype, seed
        self.tied = dict(plan.tied)
        self.weights: Weights = open_weights(plan.source, plan.revision)
        self.origins = find_origins(net, self.weights, {p.name: p.stored_shape for p in plan.parameters()}, self.tied)
        self.adapter = read_adapter(plan, net)
        self.corrections: dict[str, dict[str, Tensor]] = {}  # LoftQ's, of the block being filled: module -> A and B
        self.float32 = re.compile("|".join(net._keep_in_fp32_modules_strict or ()) or r"(?!)")

    def block_filler(self, name: str, parameters: tuple[ParameterPlan, ...]) -> Fill:
        """Return the function that makes one block whole: weights, adapters and buffers."""

        def fill(block: nn.Module) -> None:
            self.fill_parameters(parameters)
            self.fill_adapters(block, name)
            self.move_buffers(block)

        return fill

    def fill_root(self, net: nn.Module) -> None:
        """Fill what no block holds, and tie what the plan ties."""
        self.fill_parameters(self.plan.root)
        self.fill_new_rows()
        self.fill_tables_of_adapter()
        for name, source in self.tied.items():
            self.check_tied(name, source)
            (module, attribute), (source_module, source_attribute) = owner(self.net, name), owner(self.net, source)
            setattr(module, attribute, getattr(source_module, source_attribute))
        inside = tuple(f"{block.name}." for block in self.plan.blocks)
        self.fill_adapters(net, "", skip=inside)
        self.move_buffers(net)

    def fill_parameters(self, parameters: tuple[ParameterPlan, ...]) -> None:
        """Put real tensors in place of `parameters`."""
        made: dict[str, Tensor] = {}
        for parameter in parameters:
            if parameter.name not in self.origins:
                continue  # transformers says it may be missing; its initial value stands
            origin, name = self.origins[parameter.name]
            if parameter.quantized and origin.as_it_is in self.weights.packed:
                self.take(parameter, self.weights.packed[origin.as_it_is])
                continue
            if name not in made:
                made |= origin.make(self.net, self.weights.read)
            self.put(parameter, made.pop(name))

    def take(self, parameter: ParameterPlan, packed: PackedWeight) -> None:
        """Take a weight that the checkpoint holds in bytes, without quantizing it again."""
        module, _ = owner(self.net, parameter.name)
        assert isinstance(module, QuantizedLinear)
        assert self.plan.quantizer is not None
        planned = self.plan.quantizer.name, dict(self.plan.quantizer.options)
        if (packed.kind, packed.options) != planned:
            raise ModelError(
                f"the weight is not stored as the configuration says, got {packed.kind} with {packed.options}, "
                f"expected {planned[0]} with {planned[1]}",
                where=parameter.name,
                help="mend quantization_config in config.json, or use the unquantized checkpoint",
            )
        module.take({name: value.to(self.device) for name, value in packed.stored().items()})

    def put(self, parameter: ParameterPlan, value: Tensor) -> None:
        """Put one tensor of the checkpoint where it belongs, quantized, cast and grown as planned."""
        module, attribute = owner(self.net, parameter.name)
        if parameter.quantized:
            assert isinstance(module, QuantizedLinear)
            value = value.to(self.device)
            module.fill(value)
            if self.plan.loftq and parameter.adapted and self.adapter is None:
                name = parameter.name.removesuffix(".weight")
                rank = int(self.net.get_submodule(name).get_parameter(f"lora_A.{ADAPTER}.weight").shape[0])
                self.corrections[name] = correction(value, module, rank)
            return
        old, source = getattr(module, attribute), value
        value = value.to(self.device)
        if value.is_floating_point():
            value = value.to(torch.float32 if self.float32.search(parameter.name) else self.dtype)
        if parameter.stored_rows is not None:
            value = grown(value, parameter.shape[0])
        # What is never written to may stay the file's own pages (on a CPU); training needs memory of its own.
        if value.untyped_storage().data_ptr() == source.untyped_storage().data_ptr() and (
            old.requires_grad or parameter.first_rows or not is_whole(value)
        ):
            value = value.clone()
        if isinstance(old, nn.Parameter):
            value = nn.Parameter(value, requires_grad=old.requires_grad)
        setattr(module, attribute, value)

    def fill_new_rows(self) -> None:
        """Give the rows of new tokens their first values: the mean of what describes them, else of all known tokens."""
        for parameter in self.plan.root:
            if parameter.first_rows:
                module, attribute = owner(self.net, parameter.name)
                table: Tensor = getattr(module, attribute).data
                known = table[: min(self.plan.known_tokens or table.shape[0], parameter.stored_shape[0])]
                mean = known.float().mean(0).to(table.dtype)
                for row in parameter.first_rows:
                    words = list(self.plan.descriptions.get(row, ()))
                    table[row] = table[words].float().mean(0).to(table.dtype) if words else mean

    def fill_tables_of_adapter(self) -> None:
        """Take the frozen tables that the adapter to continue brings: they hold the rows of its new tokens."""
        if self.adapter is None:
            return
        own = adapter_files(self.net)  # a table that is trained whole has the same name there
        for parameter in self.plan.root:
            for name in table_names(parameter.name):
                if name in self.adapter and name not in own:
                    module, attribute = owner(self.net, parameter.name)
                    old = getattr(module, attribute)
                    value = self.adapter[name].to(old.device, old.dtype)
                    setattr(module, attribute, nn.Parameter(value, requires_grad=old.requires_grad))

    def fill_adapters(self, module: nn.Module, prefix: str, *, skip: tuple[str, ...] = ()) -> None:
        """Give the adapter parameters under `module`, whose name in the net is `prefix`, their first values."""
        fresh: dict[int, nn.Parameter] = {}  # by the empty one's identity: what two modules shared they share again
        for name, parameter in list(module.named_parameters(prefix, remove_duplicate=False)):
            if is_adapter(name) and not name.startswith(skip):
                if id(parameter) not in fresh:
                    value = self.adapter_value(name, parameter).to(self.device)
                    fresh[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
                holder, _, attribute = name.rpartition(".")
                self.net.get_submodule(holder).register_parameter(attribute, fresh[id(parameter)])

    def adapter_value(self, name: str, parameter: nn.Parameter) -> Tensor:
        """The first value of one adapter parameter: of the adapter to continue, a copy of the base's, or made."""
        value: Tensor
        if self.adapter is not None and peft_name(name) in self.adapter:
            value = self.adapter[peft_name(name)].to(parameter.dtype, copy=True)
            return value
        if name.endswith(f".{DELTA}"):
            wrapper = self.net.get_submodule(name.removesuffix(f".{DELTA}"))
            assert isinstance(wrapper, TrainedRows)
            value = wrapper.base_layer.get_parameter("weight").detach()[wrapper.rows].to(parameter.dtype)
            return value
        if ".modules_to_save." in name:
            module, attribute = owner(self.net, peft_name(name).removeprefix(PEFT_PREFIX))
            base: Tensor = getattr(module, attribute)
            return base.detach().to(parameter.dtype, copy=True)
        if ".lora_magnitude_vector." in name:
            return magnitudes(self.net.get_submodule(name.partition(".lora_magnitude_vector.")[0])).to(parameter.dtype)
        layer, _, rest = name.partition(".lora_")
        if layer in self.corrections:
            return self.corrections[layer].pop(f"lora_{rest.partition('.')[0]}").to(parameter.dtype)
        return initial_value(name, tuple(parameter.shape), seed=self.seed).to(parameter.dtype)

    def check_tied(self, name: str, source: str) -> None:
        """Refuse a checkpoint that holds two different tensors for what its configuration ties."""
        pair = (name, source) if name in self.origins and source in self.origins else ()
        if pair and self.origins[name] != self.origins[source]:
            first, second = (self.origins[key][0].make(self.net, self.weights.read)[key] for key in pair)
            if not torch.equal(first, second):
                raise ModelError(
                    f"tie_word_embeddings is true, but the checkpoint holds a {name} that differs from {source}",
                    where="base_model",
                    help="set model_config: {tie_word_embeddings: false} to keep both",
                )

    def move_buffers(self, module: nn.Module) -> None:
        """Bring the buffers that `module` still holds elsewhere to the device."""
        for part in module.modules():
            for name, buffer in part.named_buffers(recurse=False):
                if not buffer.is_meta and buffer.device != self.device:
                    setattr(part, name, buffer.to(self.device))


def is_whole(value: Tensor) -> bool:
    """Whether `value` is all there is in its storage, so that keeping it keeps nothing else alive."""
    return value.is_contiguous() and value.untyped_storage().nbytes() == value.numel() * value.element_size()


def grown(table: Tensor, num_rows: int) -> Tensor:
    """Return `table` (V, ...) with rows added up to `num_rows`, each the mean of the old ones.

    The mean keeps a new token's logit at the average of the others' (Hewitt 2021, "Initializing new word embeddings").
    """
    mean = table.float().mean(0, keepdim=True).to(table.dtype)
    return torch.cat([table, mean.expand(num_rows - table.shape[0], *table.shape[1:])])


def initial_value(name: str, shape: tuple[int, ...], *, seed: int) -> Tensor:
    """Draw a LoRA parameter as PEFT does: A uniform in +-1/sqrt(in_features), B zero; embeddings A zero, B normal."""
    if ".lora_B." in name or ".lora_embedding_A." in name:
        return torch.zeros(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    if ".lora_embedding_B." in name:
        return torch.empty(shape).normal_(generator=generator)
    bound = 1 / math.sqrt(shape[1])  # kaiming_uniform_ with a = sqrt(5)
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
