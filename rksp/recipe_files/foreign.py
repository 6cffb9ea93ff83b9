"""Formats that people point rksp at by mistake, or that it does not read, by name."""

from __future__ import annotations

from dataclasses import dataclass

from rksp.recipe_files.document import Document


@dataclass(frozen=True, slots=True)
class Foreign:
    """A format that is recognized and refused.

    Attributes:
        title: What it is, with its article.
        marks: Dotted keys that must all be there.
        advice: What to do.
    """

    title: str
    marks: tuple[str, ...]
    advice: str = "Give the file of the run that trains the model."


FOREIGN: tuple[Foreign, ...] = (
    Foreign("a sweep of W&B, not one recipe", ("parameters", "method"), "Give it to rksp grid."),
    Foreign(
        "a file of Accelerate",
        ("compute_environment", "distributed_type"),
        "It says where a run takes place; give the trainer's own file too.",
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
    Foreign("an index of weights", ("weight_map", "metadata")),
    Foreign("a project file of Python", ("build-system",)),
    Foreign("a project file of Python", ("project.name", "project.dependencies")),
    Foreign("a package of Node.js", ("name", "version", "scripts")),
    Foreign("a workflow of GitHub", ("jobs", "on")),
    Foreign("a workflow of GitLab", ("stages", "variables")),
    Foreign("a configuration of pre-commit", ("repos",)),
    Foreign("a manifest of Kubernetes", ("apiVersion", "kind")),
    Foreign("a configuration of Docker Compose", ("services",)),
    Foreign("an environment of conda", ("channels", "dependencies")),
    Foreign("a configuration of Read the Docs", ("build.os", "version")),
    Foreign("a configuration of Ultralytics YOLO", ("lr0", "imgsz")),
    Foreign("a configuration of Ultralytics YOLO", ("lr0", "lrf")),
    Foreign("a configuration of Detectron2", ("MODEL", "SOLVER")),
    Foreign("a configuration of kohya's sd-scripts", ("unet_lr", "network_dim")),
    Foreign(
        "a configuration of kohya's sd-scripts", ("network_module", "pretrained_model_name_or_path")
    ),
    Foreign("a configuration of ESPnet", ("encoder_conf", "optim_conf")),
    Foreign("a configuration of OpenNMT", ("encoder_type", "decoder_type")),
    Foreign("a configuration of OpenNMT", ("src_vocab", "train_steps")),
    Foreign("a configuration of JoeyNMT", ("training.batch_type", "model.encoder")),
    Foreign("a configuration of Marian", ("mini-batch-fit", "vocabs")),
    Foreign("a configuration of SpeechBrain", ("hparams_file",)),
    Foreign("a configuration of Lightning's command line", ("seed_everything", "trainer")),
    Foreign("a configuration of timm", ("sched", "opt", "model")),
    Foreign("a configuration of spaCy", ("nlp", "training")),
    Foreign("a configuration of DVC", ("stages",)),
    Foreign("a project of MLflow", ("entry_points",)),
    Foreign(
        "a Hydra configuration that only names other files",
        ("defaults",),
        "Give the composed one, which --cfg job prints.",
    ),
    Foreign("a configuration of Megatron's data blend", ("train", "valid", "test")),
    Foreign(
        "a configuration of verl",
        ("actor_rollout_ref", "algorithm"),
        "It trains by reinforcement learning, which rksp does not judge.",
    ),
    Foreign("a configuration of OpenRLHF", ("actor_learning_rate",)),
    Foreign("a task of lm-evaluation-harness", ("task", "doc_to_text")),
    Foreign("a configuration of Stable Baselines", ("n_timesteps", "policy")),
    Foreign("a notebook of Jupyter", ("cells", "nbformat")),
)


def name_of(document: Document) -> Foreign | None:
    """Recognize the format of a document that no reader supports; None if it is unclear."""
    for foreign in FOREIGN:
        if document.has(*foreign.marks):
            return foreign
    return None
