"""Find a model of the Hugging Face Hub on this machine, or fetch it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.models.configuration import offline

_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
_LARGEST = 2**20  # bytes of a config.json; the largest real one is below 100 kB
_PATIENCE = 5.0  # seconds
_TRUE = ("1", "ON", "YES", "TRUE")  # as the Hub's client reads its variables
_NOT_HERE = (
    "it is neither in the local cache nor in rksp's table of published configurations",
    "pass --allow-hub to fetch it, or give its config.json, or a type such as llama, as the target",
)


def _why(error: Exception) -> tuple[str, str]:
    """Return why the Hub did not give a model, and what to do."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    name = type(error).__name__
    if status == 403 or name == "GatedRepoError":
        return "the Hub does not let you read it", "accept its terms and log in: hf auth login"
    if name == "OfflineModeIsEnabled":
        return "the Hub was not asked", "unset HF_HUB_OFFLINE, or give the model's config.json"
    if name in ("RemoteEntryNotFoundError", "EntryNotFoundError"):
        return "the Hub has no config.json of it", "give the model's config.json"
    if status in (401, 404) or name in ("RepositoryNotFoundError", "HFValidationError"):
        return "the Hub shows you no such model", "check the name, or log in: hf auth login"
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


def fetch_config(target: str) -> Path:
    """Fetch the config.json of a Hub model into the local cache: no weights and no code.

    Returns:
        The folder that holds it.

    Raises:
        InputError: The Hub does not give it within seconds, or it is larger than 1 MB.
    """
    import huggingface_hub

    try:
        url = huggingface_hub.hf_hub_url(target, "config.json")
        size = huggingface_hub.get_hf_file_metadata(url, timeout=_PATIENCE).size
        if size is None or size <= _LARGEST:
            name = huggingface_hub.hf_hub_download(target, "config.json", etag_timeout=_PATIENCE)
            return Path(name).parent
    except Exception as error:  # of the Hub's client, or of the library that it speaks through
        where, advice = _why(error)
        raise InputError(f"{target} looks like a Hub id, but {where}; {advice}.") from error
    raise InputError(f"The config.json of {target} has {size} bytes; at most {_LARGEST} are read.")


def may_fetch(offline: bool) -> bool:
    """Tell whether the network may be used: neither an option nor HF_HUB_OFFLINE forbids it."""
    return not offline and os.environ.get("HF_HUB_OFFLINE", "").upper() not in _TRUE
