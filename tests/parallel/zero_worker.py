"""One rank of two: runs the checks it is given under ZeRO. Started by test_zero.py, not by pytest."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
from torch import distributed as dist


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")  # DeepSpeed's own
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=2)
    import zero_checks

    for name, (check, arguments) in torch.load(folder / "checks.pt", weights_only=False).items():
        result = zero_checks.answer(getattr(zero_checks, check), arguments)
        if dist.get_rank() == 0:
            torch.save(result, folder / f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
