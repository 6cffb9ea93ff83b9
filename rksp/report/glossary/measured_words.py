"""The words for what was measured, with their healthy or usual ranges."""

from __future__ import annotations

from functools import partial

from rksp.report.glossary.word import Word

_Quantity = partial(Word, is_quantity=True)
_PAPER = "RKSP, arXiv 2602.22988."

MEASURED_WORDS: tuple[Word, ...] = (
    # The spectra of the blocks
    _Quantity(
        name="M≈1",
        meaning=(
            "Near-unit mass: the share of a block's eigenvalues with a modulus between 0.90 and "
            "1.05. Its mean over the blocks is the published score."
        ),
        usual=(0.062, 1.0),
        feature="near_unit_mass",
        spellings=("near-unit mass", "near_unit_mass", "published_score", "m~1", "near-unit"),
        source=_PAPER,
    ),
    _Quantity(
        name="M>1",
        meaning="Expansive mass: the share of a block's eigenvalues with a modulus above 1.05.",
        usual=(0.0, 0.71),
        feature="expansive_mass",
        spellings=("expansive mass", "expansive_mass", "outside: grows with depth"),
        source=_PAPER,
    ),
    _Quantity(
        name="M<1",
        meaning=(
            "Contractive mass: the share of a block's eigenvalues with a modulus below 0.80. "
            "What lies along them shrinks with depth."
        ),
        spellings=("contractive mass", "contractive_mass", "inside the unit circle"),
        source=_PAPER,
    ),
    _Quantity(
        name="ρ",
        meaning="Spectral radius: the largest modulus of a block's eigenvalues.",
        usual=(1.0, 25.0),
        feature="spectral_radius",
        spellings=("rho", "spectral radius", "spectral_radius", "spectral radius ρ"),
    ),
    _Quantity(
        name="κ(V)",
        meaning=(
            "The condition number of a block's eigenvectors; it is 1 if they are orthogonal. If "
            "it is large, states can grow for a while although every eigenvalue has a modulus "
            "below 1."
        ),
        usual=(47.0, 1100.0),
        feature="eigenvector_condition",
        spellings=("kappa", "eigenvector_condition", "eigenvector condition", "condition κ(V)"),
    ),
    _Quantity(
        name="non-normality",
        meaning=(
            "Henrici's departure from normality, from 0 (orthogonal eigenvectors) to 1 (no "
            "eigenvalue differs from zero)."
        ),
        usual=(0.047, 0.94),
        feature="nonnormality",
        spellings=("nonnormality",),
        source="Henrici (1962).",
    ),
    _Quantity(
        name="gain",
        meaning=(
            "Energy gain: the mean of the squared singular values of a block's fitted map. Random "
            "states leave the block with this multiple of their energy."
        ),
        usual=(1.0, 2500.0),
        feature="energy_gain",
        spellings=("energy gain", "energy_gain"),
        source=_PAPER,
    ),
    _Quantity(
        name="η",
        meaning="Nonlinearity ratio: the part of a block's update that no linear map explains.",
        usual=(0.12, 0.77),
        feature="nonlinearity",
        spellings=("eta", "nonlinearity"),
        source=_PAPER,
    ),
    _Quantity(
        name="update",
        meaning="The size of a block's update divided by the size of its input.",
        usual=(0.041, 22.0),
        feature="update_ratio",
        spellings=("update ratio", "update_ratio"),
    ),
    _Quantity(
        name="rms in",
        meaning="The root mean square of the residual stream where it enters the block.",
        spellings=("rms_in",),
    ),
    _Quantity(
        name="rms out",
        meaning="The root mean square of the residual stream where it leaves the block.",
        spellings=("rms_out",),
    ),
    _Quantity(
        name="rms out ÷ rms in",
        meaning="The factor by which a block makes the residual stream larger.",
        spellings=("growth",),
    ),
    _Quantity(
        name="Kreiss constant",
        meaning="A lower bound of the largest transient growth of the fitted linear map.",
        spellings=("kreiss",),
        source="Trefethen and Embree (2005), chapter 14.",
    ),
    Word(
        name="block",
        meaning=(
            "One layer of the residual stream, such as attention with its feed-forward part. The "
            "page names its module."
        ),
        spellings=("blocks", "blocks at a glance", "eigenvalues of every block"),
    ),
    Word(
        name="residual-stream spectra",
        meaning=(
            "The eigenvalues of the linear map that is fitted to what each block does to the "
            "residual stream."
        ),
        spellings=("spectra", "spectrum", "eigenvalues", "residual stream"),
        source=_PAPER,
    ),
    Word(
        name="variant",
        meaning=(
            "The definition of the spectrum: rksp-1 is rksp's own, and the names that begin with "
            "paper- follow the paper's text. Numbers of two variants cannot be compared."
        ),
        spellings=(
            "rksp-1",
            "paper-full-1",
            "paper-filtered-1",
            "paper-rank32-1",
            "paper-ridge-1",
        ),
    ),
    Word(
        name="coverage",
        meaning="The share of the blocks whose spectrum can be trusted and enters the means.",
        healthy="100 %.",
    ),
    Word(
        name="states",
        meaning="The number of token vectors to which the linear map of each block is fitted.",
        healthy="At least 1.5 times the width; otherwise rksp reduces the rank.",
        spellings=("snapshots",),
    ),
    Word(
        name="beyond the frame",
        meaning="Eigenvalues with a modulus too large for the drawing; they stand at its border.",
    ),
    Word(
        name="status",
        meaning=(
            "Whether a block's spectrum can be trusted. Only blocks with status ok count in the "
            "means. Every other status has its own explanation (rksp explain STATUS)."
        ),
    ),
    Word(
        name="not measured",
        meaning=(
            "rksp could not take this measurement; the reason follows. It is never shown as zero."
        ),
        spellings=("–", "not_measured", "did not measure"),
    ),
    # The forward pass and the response
    _Quantity(
        name="initial loss",
        meaning=(
            "The loss in nats before the first step. The loss of a uniform guess is the logarithm "
            "of the vocabulary size."
        ),
        check="RKSP101",
        spellings=("loss of a uniform guess", "uniform_loss"),
    ),
    _Quantity(
        name="logit std",
        meaning="The standard deviation of the output logits over the classes.",
        check="RKSP102",
        spellings=("logit_std",),
    ),
    _Quantity(
        name="attention logit std",
        meaning=(
            "The standard deviation of the attention logits over visible keys, in the layer where "
            "it is largest."
        ),
        check="RKSP201",
        spellings=("attention_logit_std",),
    ),
    _Quantity(
        name="attention entropy",
        meaning=(
            "The entropy of attention divided by the logarithm of the number of visible keys, in "
            "the layer where it is lowest. 1 is uniform."
        ),
        check="RKSP202",
        spellings=("attention_entropy",),
    ),
    _Quantity(
        name="router entropy",
        meaning=(
            "The entropy of the router's distribution over the experts, in the layer where it is "
            "lowest. 1 is uniform."
        ),
        check="RKSP801",
        spellings=("router_entropy",),
    ),
    _Quantity(
        name="largest activation",
        meaning=(
            "The largest absolute value in the output of any module, and the name of that module."
        ),
        healthy="in fp16 at most 8,188; else no known range",
        spellings=("activation_absmax",),
    ),
    _Quantity(
        name="gradient norm",
        meaning=(
            "The Euclidean norm of the gradient of the first batch. Where it is larger than the "
            "configuration lets expect, the likely edge is lower."
        ),
        check="RKSP403",
        spellings=("grad_norm",),
    ),
    _Quantity(
        name="critical rate",
        meaning=(
            "The learning rate above which a single first step no longer lowers the loss of an "
            "unseen batch."
        ),
        healthy="above the recipe's learning rate",
        spellings=("critical_rate", "critical sharpness"),
        source="Idea of arXiv 2601.16979, on an unseen batch.",
    ),
    Word(
        name="cost of the response",
        meaning=(
            "The compute of the response in forward passes of the same batch. A backward pass "
            "counts as two."
        ),
        spellings=("forward_passes", "forward passes"),
    ),
    # Units
    Word(
        name="nats",
        meaning="The unit of a loss that uses the natural logarithm; one nat is 1.44 bits.",
        spellings=("nat",),
    ),
    Word(
        name="parameters",
        meaning="The number of weights that are trained; k, M and B are thousands to billions.",
        spellings=("parameter", "k", "M", "B", "size"),
    ),
    Word(
        name="tokens",
        meaning="The pieces of text that the model reads; a batch has sequences × length of them.",
        spellings=("token", "sequences", "sequence"),
    ),
    Word(
        name="steps",
        meaning="Optimizer steps: the number of times that the weights are changed.",
        spellings=("step",),
    ),
    # The target
    Word(
        name="random initialization",
        meaning=(
            "rksp drew the weights from the model's own initialization with --seed; no trained "
            "weights were read."
        ),
        spellings=("initialization",),
    ),
    Word(
        name="stored weights",
        meaning="The weights come from a checkpoint, so the answer is about continued training.",
        spellings=("weights as given",),
    ),
    Word(
        name="width",
        meaning="The number of entries of the residual stream at one token.",
        spellings=("hidden size",),
    ),
    Word(
        name="probe",
        meaning="The text that the model reads while rksp measures it (--probe).",
    ),
    Word(
        name="seed",
        meaning="The number that fixes the random initialization and the order of the data.",
        spellings=("seeds",),
    ),
    Word(
        name="spread",
        meaning="Mean, standard deviation, lowest and highest value over several seeds.",
    ),
)
