"""Formats that rksp recognizes by name but does not read."""

from __future__ import annotations

from dataclasses import dataclass

from rksp.recipe_files.parse.document import Document


@dataclass(frozen=True, slots=True)
class Foreign:
    """A format that is recognized and refused.

    Attributes:
        title: Its name with an article.
        marks: Dotted keys that must all be there.
        advice: What the user can do.
    """

    title: str
    marks: tuple[str, ...]
    advice: str = "Give the file of the run that trains the model."


FOREIGN: tuple[Foreign, ...] = (
    Foreign("a W&B sweep, not one recipe", ("parameters", "method"), "Give it to rksp grid."),
    Foreign(
        "an Accelerate configuration",
        ("compute_environment", "distributed_type"),
        "It only says where a run takes place; give the trainer's own file.",
    ),
    Foreign(
        "the state of a finished Hugging Face run",
        ("log_history", "global_step"),
        "Give the run's training arguments as JSON.",
    ),
    Foreign(
        "the settings of a PEFT adapter",
        ("peft_type", "base_model_name_or_path"),
        "Give the trainer's file.",
    ),
    Foreign("the settings of a tokenizer", ("tokenizer_class",)),
    Foreign("a tokenizer", ("added_tokens", "pre_tokenizer")),
    Foreign("generation settings", ("eos_token_id", "transformers_version", "_from_model_config")),
    Foreign("a weight index", ("weight_map", "metadata")),
    Foreign("a Python project file", ("build-system",)),
    Foreign("a Python project file", ("project.name", "project.dependencies")),
    Foreign("a Node.js package file", ("name", "version", "scripts")),
    Foreign("a GitHub workflow", ("jobs", "on")),
    Foreign("a GitLab pipeline", ("stages", "variables")),
    Foreign("a pre-commit configuration", ("repos",)),
    Foreign("a Kubernetes manifest", ("apiVersion", "kind")),
    Foreign("a Docker Compose configuration", ("services",)),
    Foreign("a conda environment", ("channels", "dependencies")),
    Foreign("a Read the Docs configuration", ("build.os", "version")),
    Foreign("an Ultralytics YOLO configuration", ("lr0", "imgsz")),
    Foreign("an Ultralytics YOLO configuration", ("lr0", "lrf")),
    Foreign("a Detectron2 configuration", ("MODEL", "SOLVER")),
    Foreign("a configuration of kohya's sd-scripts", ("unet_lr", "network_dim")),
    Foreign(
        "a configuration of kohya's sd-scripts", ("network_module", "pretrained_model_name_or_path")
    ),
    Foreign("an ESPnet configuration", ("encoder_conf", "optim_conf")),
    Foreign("an OpenNMT configuration", ("encoder_type", "decoder_type")),
    Foreign("an OpenNMT configuration", ("src_vocab", "train_steps")),
    Foreign("a JoeyNMT configuration", ("training.batch_type", "model.encoder")),
    Foreign("a Marian configuration", ("mini-batch-fit", "vocabs")),
    Foreign("a SpeechBrain configuration", ("hparams_file",)),
    Foreign("a configuration of Lightning's command line", ("seed_everything", "trainer")),
    Foreign("a timm configuration", ("sched", "opt", "model")),
    Foreign("a spaCy configuration", ("nlp", "training")),
    Foreign("a DVC configuration", ("stages",)),
    Foreign("an MLflow project", ("entry_points",)),
    Foreign(
        "a Hydra configuration that only names other files",
        ("defaults",),
        "Give the composed configuration, which --cfg job prints.",
    ),
    Foreign("a Megatron data blend", ("train", "valid", "test")),
    Foreign(
        "a verl configuration",
        ("actor_rollout_ref", "algorithm"),
        "It trains by reinforcement learning, which rksp does not judge.",
    ),
    Foreign("an OpenRLHF configuration", ("actor_learning_rate",)),
    Foreign("an lm-evaluation-harness task", ("task", "doc_to_text")),
    Foreign("a Stable Baselines configuration", ("n_timesteps", "policy")),
    Foreign("a Jupyter notebook", ("cells", "nbformat")),
)


def name_of(document: Document) -> Foreign | None:
    """Recognize the format of a document that no reader supports; None if it is unclear."""
    for foreign in FOREIGN:
        if document.has(*foreign.marks):
            return foreign
    return None
