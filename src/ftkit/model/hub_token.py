"""The token of the Hugging Face hub: taken from its usual places, and missed before a download starts."""

from __future__ import annotations

from pathlib import Path

from ftkit.errors import ModelError


def require_token(*, wanted: bool, source: str) -> None:
    """Raise if the recipe says that `source` needs a token and there is none; hub libraries find it by themselves.

    Args:
        wanted: the recipe's `hf_use_auth_token`.
        source: folder or hub id of the model; a folder needs none.

    Raises:
        ModelError: naming the places that were looked in.
    """
    if not wanted or Path(source).expanduser().is_dir():
        return
    from huggingface_hub import get_token

    if get_token() is None:
        raise ModelError(
            f"{source} is read with a token of the hub, and there is none",
            where="hf_use_auth_token",
            help="run `hf auth login`, or set HF_TOKEN, or take the key out if the model is open to everybody",
        )
