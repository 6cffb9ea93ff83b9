"""What a run file states beside the recipe: settings that a fault of a library can depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rksp.ground.text import words
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.parse.values import Unresolved
from rksp.recipe_files.said.origin import OriginKind, RecipeField, RecipeFile


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a run.

    Attributes:
        values: What is true of it: mostly one value; None where a setting is left at its default.
        said: Where it was read, such as `packing: true in run.yaml:7`; empty for a default.
    """

    values: tuple[Any, ...]
    said: str = ""


Facts = Mapping[str, Fact]  # what is not known has no entry
# Reader -> what it stands for in conditions, and the package that must be installed where it runs.
_OWN = {name: ((name, "hf_trainer"), package) for name, package in (
    ("trl", "trl"), ("axolotl", "axolotl"), ("llama-factory", "llamafactory"),
    ("ms-swift", "ms-swift"))}  # fmt: skip
TRAINERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    **_OWN,
    "hugging-face": (("hf_trainer", "accelerate"), "accelerate"),  # rksp itself needs transformers
    "deepspeed": (("deepspeed",), "deepspeed"),
    "lightning": (("lightning",), "lightning"),
    "torchtune": (("torchtune",), "torchtune"),
    "torchtitan": (("torchtitan",), "torchtitan"),
    "litgpt": (("litgpt",), "litgpt"),
    "megatron": (("megatron",), "megatron-core"),
}
_ARGUMENTS = ("trl", "hugging-face", "axolotl", "llama-factory", "ms-swift")
# Fact: the keys of files with Hugging Face's arguments; the first that has a value counts.
_SETTINGS = {
    "packing": "packing sample_packing",
    "packing_strategy": "packing_strategy",
    "use_liger_kernel": "use_liger_kernel use_liger enable_liger_kernel",
    "use_vllm": "use_vllm",
    "compile": "torch_compile",
    "gradient_checkpointing": "gradient_checkpointing",
    "use_reentrant": "gradient_checkpointing_kwargs.use_reentrant",
    "batch_size": "per_device_train_batch_size micro_batch_size per_gpu_train_batch_size",
    "modules_to_save": "modules_to_save lora_modules_to_save additional_target",
    "target_modules": "lora_target_modules lora_target target_modules",
    "cut_cross_entropy": "cut_cross_entropy",
    **{name: name for name in words(
        "vllm_mode vllm_enable_sleep_mode temperature top_p top_k min_p mask_truncated_completions "
        "scale_rewards loss_type assistant_only_loss completion_only_loss truncation_mode "
        "precompute_ref_log_probs beta average_tokens_across_devices use_rslora "
        "ddp_find_unused_parameters ddp_static_graph layers_to_transform rank_pattern "
        "target_parameters")},
}  # fmt: skip
_LOADED = {  # a script sets these where it loads the model, which rksp may not see
    "attn_implementation": "attn_implementation model_init_kwargs.attn_implementation attn_impl "
    "flash_attn flash_attention sdp_attention eager_attention flex_attention xformers_attention",
    "dtype": "torch_dtype dtype model_init_kwargs.torch_dtype model_init_kwargs.dtype",
}
_ZERO = {
    "zero_stage": "zero_optimization.stage",
    "overlap_comm": "zero_optimization.overlap_comm",
    "reduce_scatter": "zero_optimization.reduce_scatter",
    "zero_hpz_partition_size": "zero_optimization.zero_hpz_partition_size",
    "gradient_clipping": "gradient_clipping",
    "grad_accum_dtype": "data_types.grad_accum_dtype",
    "torch_autocast": "torch_autocast.enabled",
    "lr_scheduler": "scheduler.type",
}
_MEGATRON = {
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "context_parallel": "context_parallel_size",
    "expert_parallel": "expert_model_parallel_size",
    "batch_size": "micro_batch_size",
    **{name: name for name in words(
        "overlap_param_gather overlap_grad_reduce num_distributed_optimizer_instances "
        "cuda_graph_impl fsdp_double_buffer reuse_grad_buf_for_mxfp8_param_ag fp8_recipe "
        "moe_router_load_balancing_type fp8_param_gather")},
}  # fmt: skip
_MICRO = {"trl": 8, "hugging-face": 8, "llama-factory": 8, "ms-swift": 1}  # rows on a device
_PAIRED = ("dpo", "kto", "orpo", "reward")  # objectives on rows of different lengths
_ATTENTION = {
    "flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager",
    "flex_attention": "flex_attention", "xformers_attention": "xformers", "fa2":
    "flash_attention_2", "flash_attn": "flash_attention_2", "disabled": "eager", "auto": None,
}  # fmt: skip
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_KNOWN = (OriginKind.FILE, OriginKind.FLAG, OriginKind.COMPUTED, OriginKind.TRAINER,
          OriginKind.UNASKED)  # fmt: skip
_PRECISIONS = {"bf16-pure": ("bf16-pure", "bf16"), "fp16-pure": ("fp16-pure", "fp16")}
_RECIPE = words("gradient_accumulation_steps max_grad_norm learning_rate weight_decay")


def run_facts(read: RecipeFile) -> dict[str, Fact]:
    """Return what is known of a run from its file: the recipe, and settings beside it.

    What a file of a known trainer leaves out is at its default; what it computes elsewhere is not
    known.
    """
    document, found = read.document, dict(_of_fields(read))
    if document is None:
        return found
    names = TRAINERS.get(read.reader, ((), ""))[0]
    if names:
        found["trainer"] = Fact(names)
    if read.reader in _ARGUMENTS:
        found |= _said(document, _SETTINGS)
        loaded = _said(document, _LOADED)
        found |= {k: f for k, f in loaded.items() if f.values != (None,) or _is_whole(document)}
        if document.find("use_unsloth") is not None:
            found["trainer"] = Fact((*names, "unsloth"))
        found |= _of_launch(document, read.deepspeed)
        found |= _of_padding(read.reader, found)
    if read.reader == "deepspeed" or read.deepspeed is not None:
        found |= _of_zero(read.deepspeed or document, found)
    if read.reader == "megatron":
        found |= _said(document, _MEGATRON)
        implementation = document.find("transformer_impl")
        is_engine = implementation is None or implementation.value == "transformer_engine"
        found["transformer_engine"] = Fact((is_engine,))
        if document.find("use_megatron_fsdp") is not None:
            found["distributed"] = Fact(("megatron_fsdp",))
    if read.reader == "litgpt":
        found |= _said(document, {"num_nodes": "num_nodes"})
    if read.devices is not None:
        found["world_size"] = Fact((read.devices,))
    return found


def _is_whole(document: Document) -> bool:
    """Tell whether what loads the model stands in the file, or at its defaults."""
    return document.syntax != "script"


def _said(document: Document, table: Mapping[str, str]) -> dict[str, Fact]:
    """Return the settings of a table; those that are computed elsewhere are left out."""
    facts = {}
    for name, keys in table.items():
        found = document.find(*keys.split())
        if found is None:
            facts[name] = Fact((None,))
        elif not _is_computed(found.value):
            short = found.key.rpartition(".")[2].replace("-", "_")
            values = _plain(name, short, found.value)
            facts[name] = Fact(values, _place(document, found.key, found.value, found.line))
    return facts


def _is_computed(value: Any) -> bool:
    return isinstance(value, Unresolved) or (
        isinstance(value, list) and any(isinstance(part, Unresolved) for part in value)
    )


def _place(document: Document, key: str, value: Any, line: int | None) -> str:
    at = f"{document.path.name}:{line}" if line else document.path.name
    return f"{key}: {value!s:.40} in {at}"


def _plain(name: str, key: str, value: Any) -> tuple[Any, ...]:
    """Return a setting in the words of the conditions."""
    if name == "attn_implementation":
        if isinstance(value, bool):
            return (_ATTENTION.get(key) if value else None,)
        return (_ATTENTION.get(value, value),)
    if name in ("target_modules", "modules_to_save"):
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(map(str, parts)) if isinstance(parts, list) and parts else (value,)
    return (_SHORT.get(value.removeprefix("torch."), value) if isinstance(value, str) else value,)


def _of_fields(read: RecipeFile) -> Iterator[tuple[str, Fact]]:
    """Yield what the recipe's fields say, where somebody decided them."""
    fields = {field.name: field for field in read.fields if field.origin.kind in _KNOWN}
    for name in _RECIPE:
        if name in fields:
            yield name, Fact((fields[name].value,), _origin(read, fields[name]))
    if "learning_rate" in fields:
        yield "learning_rate_given", Fact((fields["learning_rate"].origin.kind == "file",))
    if "sequence_length" in fields:
        yield "sequence_length", Fact((fields["sequence_length"].value,))
    if "precision" in fields:
        value = fields["precision"].value
        values = _PRECISIONS.get(str(value), (value,))
        yield "precision", Fact(values, _origin(read, fields["precision"]))
    if "optimizer" in fields:
        raw = read.document.find("optim", "optimizer") if read.document else None
        typed = () if raw is None or not isinstance(raw.value, str) else (raw.value.lower(),)
        values = tuple(dict.fromkeys((*typed, fields["optimizer"].value)))
        yield "optimizer", Fact(values, _origin(read, fields["optimizer"]))
    if "peft" in fields:
        kind = fields["peft"].value
        yield "peft", Fact((kind,), _origin(read, fields["peft"]))
        if kind != "none":
            yield "finetuning", Fact(("adapters",))
        elif read.starts_trained:
            yield "finetuning", Fact(("full",))
    if "objective" in fields:
        value = fields["objective"].value
        is_tuning = value == "lm" and read.starts_trained
        values = ("lm", "sft") if is_tuning else (value,)
        yield "objective", Fact(values, _origin(read, fields["objective"]))


def _origin(read: RecipeFile, field: RecipeField) -> str:
    if field.origin.kind not in (OriginKind.FILE, OriginKind.COMPUTED):
        return ""
    at = f"{read.path.name}:{field.origin.line}" if field.origin.line else read.path.name
    return f"{field.name.replace('_', ' ')} {field.value} in {at}"


def _of_launch(document: Document, deepspeed: Document | None) -> dict[str, Fact]:
    """Return how the run is spread, where the file says it; else it is left at the default."""
    named = document.find("deepspeed", "deepspeed_config")
    if deepspeed is not None or (named is not None and named.value):
        return {"distributed": Fact(("deepspeed",), "" if named is None else f"{named.key} is set")}
    sharded = document.find("fsdp", "fsdp_config")
    if sharded is None or not sharded.value:
        return {"distributed": Fact((None,))}
    version = document.find("fsdp_config.fsdp_version", "fsdp_version")
    kind = "fsdp2" if version is not None and version.value == 2 else "fsdp1"
    return {"distributed": Fact((kind,), f"{sharded.key} is set")}


def _of_padding(reader: str, known: Mapping[str, Fact]) -> dict[str, Fact]:
    """Return whether rows of different lengths are padded together, so that attention is masked."""
    batch, packing = known.get("batch_size"), known.get("packing")
    found = {}
    if batch is not None and batch.values == (None,) and reader in _MICRO:
        found["batch_size"] = batch = Fact((_MICRO[reader],))
    is_tuning = {"sft", *_PAIRED} & {*known.get("objective", Fact(())).values}
    if batch is None or packing is None or packing.values[0] or not is_tuning:
        return found
    size = batch.values[0]
    if isinstance(size, int) and size > 1:
        said = f"{size} rows on a device, which are padded"
        found |= {"padding": Fact((True,)), "attention_mask": Fact((True,), said)}
    return found


def _of_zero(document: Document, known: Mapping[str, Fact]) -> dict[str, Fact]:
    """Return the settings of a DeepSpeed file; `auto` takes what the arguments say."""
    found = _said(document, _ZERO) | {"distributed": Fact(("deepspeed",))}
    if found["zero_stage"].values == (None,):
        found["zero_stage"] = Fact((0,))
    clip = found["gradient_clipping"].values if "gradient_clipping" in found else ()
    if clip == ("auto",):
        found["gradient_clipping"] = known.get("max_grad_norm", Fact(("auto",)))
    device = document.find("zero_optimization.offload_optimizer.device")
    is_off = device is None or str(device.value) == "none"
    found["offload_optimizer"] = Fact((not is_off,))
    kind = document.find("optimizer.type")
    if kind is not None and isinstance(kind.value, str):
        said = _place(document, kind.key, kind.value, kind.line)
        found["optimizer"] = Fact((kind.value.lower(),), said)
    rates = document.find("optimizer.params.muon_lr", "optimizer.params.adam_lr")
    found["muon_rates_given"] = Fact((rates is not None,))
    return found
