"""Formats that rksp recognizes by name but does not read."""

from __future__ import annotations

from rksp.recipe_files.parse.document import Document

# What has all these dotted keys: what it is, and which advice is given, unless it is the usual.
_FORMATS = """
parameters method: a W&B sweep, not one recipe: sweep
compute_environment distributed_type: an Accelerate configuration: place
log_history global_step: the state of a finished Hugging Face run: state
peft_type base_model_name_or_path: the settings of a PEFT adapter: adapter
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
lr0 imgsz: an Ultralytics YOLO configuration: typed
lr0 lrf: an Ultralytics YOLO configuration: typed
MODEL SOLVER: a Detectron2 configuration: typed
unet_lr network_dim: a configuration of kohya's sd-scripts: typed
network_module pretrained_model_name_or_path: a configuration of kohya's sd-scripts: typed
encoder_conf optim_conf: an ESPnet configuration: typed
encoder_type decoder_type: an OpenNMT configuration: typed
src_vocab train_steps: an OpenNMT configuration: typed
training.batch_type model.encoder: a JoeyNMT configuration: typed
mini-batch-fit vocabs: a Marian configuration: typed
hparams_file: a SpeechBrain configuration: typed
nlp training: a spaCy configuration: typed
stages: a DVC configuration
entry_points: an MLflow project
defaults: a Hydra configuration that only names other files: parts
train valid test: a Megatron data blend
task doc_to_text: an lm-evaluation-harness task
n_timesteps policy: a Stable Baselines configuration
cells nbformat: a Jupyter notebook
"""
_USUAL = "Give the file of the run that trains the model."
_ADVICE = {
    "sweep": "Give it to rksp grid.",
    "place": "It only says where a run takes place; give the trainer's own file.",
    "state": "Give the run's training arguments as JSON.",
    "adapter": "Give the trainer's file.",
    "parts": "Give the composed configuration, which --cfg job prints.",
    "typed": "rksp does not read it; name the model as TARGET, and type the recipe: --lr, "
    "--warmup-steps, --max-steps, --batch-size.",
}
_FOREIGN = [line.split(": ") for line in _FORMATS.strip().splitlines()]


def known_format(document: Document) -> tuple[str, str] | None:
    """Return what a document is that no reader reads, and what to give; None if it is unclear."""
    for keys, title, *advice in _FOREIGN:
        if document.has(*keys.split()):
            return title, _ADVICE[advice[0]] if advice else _USUAL
    return None
