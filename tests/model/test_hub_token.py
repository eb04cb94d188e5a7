from __future__ import annotations

from pathlib import Path

import pytest

from ftkit.errors import ModelError
from ftkit.model.hub_token import require_token


def test_a_missing_token_is_named_before_any_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ModelError) as caught:
        require_token(wanted=True, source="org/gated")
    assert str(caught.value) == (
        "hf_use_auth_token: org/gated is read with a token of the hub, and there is none\n"
        "help: run `hf auth login`, or set HF_TOKEN, or take the key out if the model is open to everybody"
    )
    require_token(wanted=False, source="org/open")
    require_token(wanted=True, source=str(tmp_path))


def test_a_token_in_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    require_token(wanted=True, source="org/gated")
