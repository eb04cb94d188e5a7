"""Trainable parameters and optimizer state on disk, in torch.distributed.checkpoint's format.

Flat names: `model/NAME` for parameters, `optimizer/NAME/KEY` for state. The format holds tensors in pieces with their
place in the whole, so what some ranks wrote can be read by any other number of ranks.

The tensors are read with `weights_only`, but the format's table of contents, `.metadata`, is a plain pickle, and torch
has no public way around that. A pickle can run code when it is read: resume only from checkpoints whose origin you
trust. What leaves a run for others (adapter, model) is safetensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from ftkit.errors import CheckpointError
from ftkit.parallel.optimizer_state import read_state

MODEL, OPTIMIZER = "model/", "optimizer/"
OF_ZERO = "zero.json"  # lies beside shards that DeepSpeed wrote
GO_ON = (  # help of every error of writing
    "make room on the disk and run it again; with auto_resume_from_checkpoints: true it goes on from the newest whole"
    " checkpoint, if there is one"
)


def save_plain(folder: Path, parameters: Mapping[str, nn.Parameter], optimizer: Optimizer) -> None:
    """Write whole parameters and their optimizer state from one process."""
    state: dict[str, Tensor] = {f"{MODEL}{name}": parameter.detach() for name, parameter in parameters.items()}
    state |= {f"{OPTIMIZER}{name}": tensor for name, tensor in read_state(optimizer, parameters).items()}
    with alone(folder, "written"):
        save(state, storage_writer=FileSystemWriter(folder, overwrite=False), no_dist=True)


@contextmanager
def alone(folder: Path, verb: str) -> Iterator[None]:
    """Save or load from one process: without torch's warning that it does, which `no_dist` asked for, with our errors.

    Raises:
        CheckpointError: a file cannot be written or read. torch's own class for that is no `Exception`.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        try:
            yield
        except (CheckpointException, OSError) as failed:
            cause = next(iter(failed.failures.values()))[0] if isinstance(failed, CheckpointException) else failed
            raise CheckpointError(
                f"the shards cannot be {verb}, got {type(cause).__name__}: {cause}",
                where=str(folder),
                help=GO_ON if verb == "written" else "resume from another checkpoint",
            ) from failed


def stored_tensors(folder: Path) -> dict[str, TensorStorageMetadata]:
    """What the checkpoint holds, by name."""
    try:
        metadata = FileSystemReader(folder).read_metadata()
    except FileNotFoundError as absent:
        if (folder / OF_ZERO).is_file():
            raise CheckpointError(
                "DeepSpeed wrote these shards, and this run is without it",
                where=str(folder),
                help="resume with the recipe's `deepspeed` on as many processes as before, or start anew from the "
                "adapter or model in the checkpoint's folder (lora_model_dir, base_model)",
            ) from absent
        raise CheckpointError(
            "the checkpoint has no shards", where=str(folder), help="resume from another checkpoint"
        ) from absent
    except Exception as junk:  # a broken pickle may raise anything
        raise CheckpointError(
            f"the shards' table of contents cannot be read, got {type(junk).__name__}: {junk}",
            where=str(folder / ".metadata"),
            help="resume from another checkpoint",
        ) from junk
    entries = metadata.state_dict_metadata.items()
    return {name: entry for name, entry in entries if isinstance(entry, TensorStorageMetadata)}


def refuse_other_parameters(
    folder: Path, stored: Mapping[str, TensorStorageMetadata], parameters: Mapping[str, nn.Parameter]
) -> None:
    """Raise one error naming every parameter that is missing, left over or of another shape."""
    there = {name.removeprefix(MODEL): tuple(entry.size) for name, entry in stored.items() if name.startswith(MODEL)}
    here = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    report = [f"not in the checkpoint: {name}" for name in sorted(here.keys() - there.keys())]
    report += [f"not trained now: {name}" for name in sorted(there.keys() - here.keys())]
    report += [
        f"{name} is {there[name]} in the checkpoint, got {shape}"
        for name, shape in here.items()
        if name in there and there[name] != shape
    ]
    if report:
        raise CheckpointError("the checkpoint does not fit the net\n  " + "\n  ".join(report), where=str(folder))
