"""Cases of the checks of precision, gradients and the optimizer's constants."""

from __future__ import annotations

from dataclasses import replace

from support.check_evidence import BLOCK, RECIPE, TUNED, UNMEASURED, healthy

from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level

TUNED_IN_FP16 = {"start": TUNED, "recipe": {"learning_rate": 1e-5, "precision": "fp16"}}


def at_4_8_billion(**recipe: float) -> CheckEvidence:
    return healthy(
        facts={"parameters": 4_800_000_000, "qk_norms": 48},
        recipe=recipe,
        gradient={"grad_norm": 3.0, "grad_rms": 4e-5},
    )


# name → (what trips it, its level, the stable twin)
CASES = {
    "non-finite-activation": (
        healthy(forward={"non_finite": "h.0.mlp"}),
        Level.ERROR,
        healthy(),
    ),
    "fp16-activation-range": (
        healthy(forward={"activation_absmax": 66_246.0}, recipe={"precision": "fp16"}),
        Level.ERROR,
        healthy(forward={"activation_absmax": 66_246.0}, recipe={"precision": "bf16"}),
    ),
    "fp8-activation-range": (
        healthy(forward={"activation_absmax": 1120.0}),
        Level.NOTE,
        healthy(forward={"activation_absmax": 400.0}),
    ),
    "low-precision-parameters": (
        healthy(recipe={"precision": "fp16-pure"}),
        Level.ERROR,
        healthy(recipe={"precision": "fp16"}),
    ),
    "fp8-activation-range, in fp8": (
        healthy(forward={"activation_absmax": 1120.0}, recipe={"precision": "fp8"}),
        Level.WARNING,
        healthy(forward={"activation_absmax": 400.0}, recipe={"precision": "fp8"}),
    ),
    "low-precision-parameters, bf16": (
        healthy(recipe={"precision": "bf16-pure"}),
        Level.WARNING,
        healthy(recipe={"precision": "bf16"}),
    ),
    "low-precision-parameters, all trained weights": (
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-3}, start=TUNED),
        Level.WARNING,
        healthy(recipe={"precision": "bf16"}, start=TUNED),
    ),
    "low-precision-parameters, adapters": (
        healthy(recipe={"precision": "bf16-pure", "peft": "lora"}, start=TUNED),
        Level.NOTE,
        healthy(recipe={"precision": "bf16", "peft": "lora"}, start=TUNED),
    ),
    "lost-updates": (
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-5}),
        Level.WARNING,
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-4}),
    ),
    "fp16-family": (
        healthy(config={"model_type": "gemma3_text"}, **TUNED_IN_FP16),
        Level.WARNING,
        healthy(config={"model_type": "gemma3_text"}, recipe={"precision": "fp16"}),
    ),
    "fp16-family, by its dtype": (
        healthy(config={"model_type": "new", "dtype": "bfloat16"}, **TUNED_IN_FP16),
        Level.WARNING,
        healthy(config={"model_type": "new", "dtype": "float16"}, **TUNED_IN_FP16),
    ),
    "fp16-family, bloom": (
        healthy(config={"model_type": "bloom"}, **TUNED_IN_FP16),
        Level.WARNING,
        healthy(config={"model_type": "bloom", "torch_dtype": "float16"}, **TUNED_IN_FP16),
    ),
    "fp16-family, phi-1.5": (
        healthy(config={"model_type": "phi"}, **TUNED_IN_FP16),
        Level.WARNING,
        healthy(config={"model_type": "phi", "torch_dtype": "float16"}, **TUNED_IN_FP16),
    ),
    "fp16-training": (
        healthy(recipe={"precision": "fp16", "learning_rate": 6e-5}, facts={"parameters": 10**11}),
        Level.WARNING,
        healthy(recipe={"precision": "bf16", "learning_rate": 6e-5}, facts={"parameters": 10**11}),
    ),
    "fp8-training": (
        healthy(recipe={"precision": "fp8", "learning_rate": 1e-5}, start=TUNED),
        Level.WARNING,
        healthy(recipe={"learning_rate": 1e-5}, start=TUNED),
    ),
    "fp8-training, from scratch": (
        healthy(recipe={"precision": "fp8"}),
        Level.NOTE,
        healthy(),
    ),
    "fp8-training, outliers": (
        healthy(recipe={"precision": "fp8"}, forward={"blocks": (replace(BLOCK, kurtosis=90.0),)}),
        Level.WARNING,
        healthy(forward={"blocks": (replace(BLOCK, kurtosis=90.0),)}),
    ),
    "non-finite-gradient": (
        healthy(gradient=UNMEASURED | {"reason": "the gradient is not finite"}),
        Level.ERROR,
        healthy(gradient=UNMEASURED | {"reason": "the gradient is zero"}),
    ),
    "fp16-gradient-range": (
        healthy(gradient={"grad_max": 1e5}, recipe={"precision": "fp16"}),
        Level.ERROR,
        healthy(gradient={"grad_max": 1e5}, recipe={"precision": "bf16"}),
    ),
    "gradient-scale": (
        healthy(gradient={"grad_norm": 5000.0}, recipe={"max_grad_norm": None}),
        Level.ERROR,
        healthy(gradient={"grad_norm": 30.0}, recipe={"max_grad_norm": None}),
    ),
    "gradient-scale, clipped": (
        healthy(gradient={"grad_norm": 132.0}),
        Level.NOTE,
        healthy(gradient={"grad_norm": 90.0}),
    ),
    "no-clipping": (
        healthy(recipe={"max_grad_norm": None, "learning_rate": 3e-3}, likely_edge=1.0),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": 1.0, "learning_rate": 3e-3}, likely_edge=1.0),
    ),
    "no-clipping, near the edge": (
        healthy(recipe={"max_grad_norm": None}, likely_edge=5e-4),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": None}, likely_edge=5e-3),
    ),
    "no-clipping, large gradient": (
        healthy(recipe={"max_grad_norm": None}, gradient={"grad_norm": 400.0}),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": None}),
    ),
    "optimizer-epsilon": (
        healthy(recipe={"adam_epsilon": 1e-2}),
        Level.WARNING,
        healthy(recipe={"adam_epsilon": 1e-2, "optimizer": "sgd"}),
    ),
    "optimizer-epsilon, zero": (
        healthy(recipe={"adam_epsilon": 0.0}),
        Level.ERROR,
        healthy(recipe={"adam_epsilon": 1e-15}),
    ),
    "optimizer-epsilon, huge and unmeasured": (
        CheckEvidence(recipe=RECIPE.model_copy(update={"adam_epsilon": 1e-2})),
        Level.ERROR,
        CheckEvidence(recipe=RECIPE.model_copy(update={"adam_epsilon": 1e-6})),
    ),
    "optimizer-epsilon, of 4.8B parameters at a rate of 0.3": (
        at_4_8_billion(learning_rate=0.3, adam_epsilon=1e-8),
        Level.WARNING,
        at_4_8_billion(learning_rate=0.3, adam_epsilon=1e-15),
    ),
    "clipping-bound": (
        healthy(recipe={"max_grad_norm": 1e-6}),
        Level.ERROR,
        healthy(recipe={"max_grad_norm": 0.01}),
    ),
    "clipping-bound, none": (
        healthy(recipe={"max_grad_norm": 1e4}),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": None}),
    ),
    "adam-betas, slow": (
        healthy(recipe={"adam_beta1": 0.98}),
        Level.WARNING,
        healthy(recipe={"adam_beta1": 0.95}),
    ),
    "adam-betas": (
        healthy(recipe={"adam_beta1": 0.999}),
        Level.ERROR,
        healthy(recipe={"adam_beta1": 0.999, "optimizer": "sgd"}),
    ),
    "adam-betas, against each other": (
        healthy(recipe={"adam_beta2": 0.5}),
        Level.ERROR,
        healthy(recipe={"adam_beta2": 0.95}),
    ),
    "adam-betas, long": (
        healthy(recipe={"adam_beta2": 0.99999}),
        Level.WARNING,
        healthy(recipe={"adam_beta2": 0.999}),
    ),
    "adam-betas, quick": (
        healthy(recipe={"adam_beta1": 0.8, "optimizer": "cautious"}),
        Level.WARNING,
        healthy(recipe={"adam_beta1": 0.8, "optimizer": "mars"}),
    ),
    "batch-memory": (
        healthy(recipe={"batch_size": 2048, "learning_rate": 3.6e-3}),
        Level.WARNING,
        healthy(recipe={"batch_size": 2048, "learning_rate": 3.6e-3, "adam_beta2": 0.95}),
    ),
    "batch-memory, usual rate": (
        healthy(recipe={"batch_size": 2048}),
        Level.NOTE,
        healthy(recipe={"batch_size": 256}),
    ),
    "weight-decay, 5": (
        healthy(recipe={"weight_decay": 5.0}),
        Level.WARNING,
        healthy(recipe={"weight_decay": 5.0, "optimizer": "lion", "learning_rate": 1e-4}),
    ),
    "weight-decay": (
        healthy(recipe={"weight_decay": 10.0, "optimizer": "sgd", "learning_rate": 0.1}),
        Level.ERROR,
        healthy(recipe={"weight_decay": 1e-4, "optimizer": "sgd", "learning_rate": 0.1}),
    ),
}
