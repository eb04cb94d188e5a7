"""What optional libraries say while they are imported, kept from a user who did not ask for them."""

from __future__ import annotations

import logging


def quiet_imports() -> None:
    """Silence notes that sound like failures; called before torch and its company are imported.

    bitsandbytes and torchao warn of optional kernels that are not there, torch of torchao's way to register constants,
    and DeepSpeed, which accelerate imports, writes to stdout that there is no GPU.
    """
    for name in ("bitsandbytes", "torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator" not in record.getMessage())
