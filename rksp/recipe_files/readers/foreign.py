"""Formats that rksp recognizes by name but does not read."""

from __future__ import annotations

from rksp.recipe_files.parse.document import Document

# What has all these dotted keys: what it is.
_FORMATS = """
parameters method: a W&B sweep, not one recipe
compute_environment distributed_type: an Accelerate configuration
log_history global_step: the state of a finished Hugging Face run
peft_type base_model_name_or_path: the settings of a PEFT adapter
tokenizer_class: the settings of a tokenizer
added_tokens pre_tokenizer: a tokenizer
eos_token_id transformers_version _from_model_config: generation settings
weight_map metadata: a weight index
build-system: a Python project file
project.name project.dependencies: a Python project file
name version scripts: a Node.js package file
jobs on: a GitHub workflow
stages variables: a GitLab pipeline
repos: a pre-commit configuration
apiVersion kind: a Kubernetes manifest
services: a Docker Compose configuration
channels dependencies: a conda environment
build.os version: a Read the Docs configuration
lr0 imgsz: an Ultralytics YOLO configuration
lr0 lrf: an Ultralytics YOLO configuration
MODEL SOLVER: a Detectron2 configuration
unet_lr network_dim: a configuration of kohya's sd-scripts
network_module pretrained_model_name_or_path: a configuration of kohya's sd-scripts
encoder_conf optim_conf: an ESPnet configuration
encoder_type decoder_type: an OpenNMT configuration
src_vocab train_steps: an OpenNMT configuration
training.batch_type model.encoder: a JoeyNMT configuration
mini-batch-fit vocabs: a Marian configuration
hparams_file: a SpeechBrain configuration
nlp training: a spaCy configuration
stages: a DVC configuration
entry_points: an MLflow project
defaults: a Hydra configuration that only names other files
train valid test: a Megatron data blend
actor_rollout_ref algorithm: a verl configuration
actor_learning_rate: an OpenRLHF configuration
task doc_to_text: an lm-evaluation-harness task
n_timesteps policy: a Stable Baselines configuration
cells nbformat: a Jupyter notebook
"""
_ADVICE = {
    "a W&B sweep, not one recipe": "Give it to rksp grid.",
    "an Accelerate configuration": (
        "It only says where a run takes place; give the trainer's own file."
    ),
    "the state of a finished Hugging Face run": "Give the run's training arguments as JSON.",
    "the settings of a PEFT adapter": "Give the trainer's file.",
    "a Hydra configuration that only names other files": (
        "Give the composed configuration, which --cfg job prints."
    ),
    "a verl configuration": "It trains by reinforcement learning, which rksp does not judge.",
}
_TYPE_IT = (
    "rksp does not read it; name the model as TARGET, and type the recipe: --lr, --warmup-steps, "
    "--max-steps, --batch-size."
)
_ADVICE |= dict.fromkeys(
    (
        "an Ultralytics YOLO configuration",
        "a Detectron2 configuration",
        "a configuration of kohya's sd-scripts",
        "an ESPnet configuration",
        "an OpenNMT configuration",
        "a JoeyNMT configuration",
        "a Marian configuration",
        "a SpeechBrain configuration",
        "a spaCy configuration",
        "an OpenRLHF configuration",
    ),
    _TYPE_IT,
)
_USUAL = "Give the file of the run that trains the model."
_FOREIGN = [line.split(": ") for line in _FORMATS.strip().splitlines()]


def known_format(document: Document) -> tuple[str, str] | None:
    """Return what a document is that no reader reads, and what to give; None if it is unclear."""
    for keys, title in _FOREIGN:
        if document.has(*keys.split()):
            return title, _ADVICE.get(title, _USUAL)
    return None
