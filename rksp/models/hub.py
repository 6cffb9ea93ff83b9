"""Find a model of the Hugging Face Hub on this machine, or fetch it."""

from __future__ import annotations

import re
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.models.configuration import offline

_ID = re.compile(r"^[\w.-]+/[\w.-]+$")


_NOT_HERE = (
    "it is not in the local cache",
    "pass --allow-hub to fetch it, or give its config.json, or a type such as llama, as the target",
)


def _why(error: Exception) -> tuple[str, str]:
    """Return why the Hub did not give a model, and what to do."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    name = type(error).__name__
    if status in (401, 403) or name == "GatedRepoError":
        return "the Hub does not let you read it", "accept its terms and log in: hf auth login"
    if status == 404 or name in ("RepositoryNotFoundError", "HFValidationError"):
        return "the Hub has no such model", "check the name"
    return "the Hub cannot be reached", "check the network, or give the model's config.json"


def is_hub_id(target: str) -> bool:
    """Tell whether a target has the form `owner/name`."""
    return _ID.match(target) is not None


def is_cached(target: str) -> bool:
    """Tell whether the local cache holds some of a Hub model."""
    with offline():
        from huggingface_hub.constants import HF_HUB_CACHE
    return (Path(HF_HUB_CACHE) / f"models--{target.replace('/', '--')}").is_dir()


def hub_folder(target: str, allow_hub: bool) -> Path:
    """Return the folder of a Hub model, from the cache unless the network is allowed.

    Raises:
        InputError: The cache lacks it, or the Hub has no such model.
    """
    if allow_hub:
        import huggingface_hub
    else:
        with offline():
            import huggingface_hub
    try:
        folder = huggingface_hub.snapshot_download(
            target,
            allow_patterns=["*.json", "*.safetensors"],
            local_files_only=not allow_hub,
        )
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        where, advice = _why(error) if allow_hub else _NOT_HERE
        raise InputError(
            f"{target} looks like a Hub id, but {where} ({type(error).__name__}); {advice}."
        ) from error
    return Path(folder)
