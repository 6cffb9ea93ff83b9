"""The reader of a configuration: sizes and switches, before a model is built.

It reads a configuration of transformers or of the zoo, the mapping of a `config.json`, and any
object with the same settings. It imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rksp.documents.shown import Placement
from rksp.models.families import FAMILIES, Family, family_of
from rksp.models.type_table import HEADS, WIDTHS, type_row

_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
_DECODER_DEPTH = ("num_decoder_layers", "decoder_layers")
_HEAD_DIM = ("head_dim", "d_kv")
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads")
_INNER = (
    *("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"),
    *("encoder_ffn_dim", "ffn_embed_dim"),
)
EXPERTS = (
    *("num_local_experts", "num_experts", "n_routed_experts"),
    *("moe_num_experts", "num_moe_experts"),
)
_CHOSEN = ("num_experts_per_tok", "moe_top_k", "num_experts_per_token", "moe_topk")
_ROTARY = ("rope_theta", "rope_parameters", "rope_scaling")
# Settings of blocks that mix tokens otherwise than attention does.
_OTHER_MIXERS = ("state_size", "ssm_state_size", "mamba_d_state", "linear_num_value_heads")
_MULTIPLIERS = (
    *("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"),
)
_EMBEDDED = ("embedding_size", "word_embed_proj_dim")  # where tokens have a width of their own
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
_BLOCKS = ("ffn_config", "attn_config")  # DBRX and MPT keep the settings of blocks there


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredShape:
    """A model's size, computed from its configuration with an error of a few per cent.

    Attributes:
        width, depth: Of the residual stream, and the number of blocks.
        parameters: Of the whole model.
        block_parameters: Parameters of the blocks: all except embedding and output layer.
        active_parameters: Parameters that one token uses; fewer than all in a mixture of experts.
    """

    width: int
    depth: int
    parameters: float
    block_parameters: float
    active_parameters: float


class Declared:
    """What a configuration declares.

    A model of text and images counts as the part that the task needs; an encoder and a decoder
    count as one stack of blocks.

    Args:
        config: A configuration, or None.
        task: What the model predicts, as in `rksp.models.source.Task`.
    """

    def __init__(self, config: object, task: str | None = None) -> None:
        self.config = config
        self.task = task or ""
        name = "vision_config" if self.task == "image-classification" else "text_config"
        self.part = setting(config, name) or config
        self._found: dict[tuple[str, ...], object] = {}

    def get(self, *names: str) -> object | None:
        """Return the first of these settings that the configuration or its part has."""
        if names not in self._found:
            found = (setting(part, name) for part in (self.config, self.part) for name in names)
            self._found[names] = next((value for value in found if value is not None), None)
        return self._found[names]

    def declares(self, name: str) -> bool:
        """Return True if the configuration or its part has a setting, be it one by layer."""
        for part in (self.config, self.part):
            try:
                if getattr(part, name, None) is not None or setting(part, name) is not None:
                    return True
            except RuntimeError:  # transformers: it differs by layer
                return True
        return False

    def number(self, *names: str) -> float | None:
        """Return the first of these settings if it is one number, not a list by layer."""
        return _number(self.get(*names))

    def _size(self, *names: str) -> int | None:
        blocks = [setting(self.part, name) for name in _BLOCKS]
        for part in (self.part, self.config, *blocks):
            for name in names:
                value = _number(setting(part, name))
                if isinstance(value, int) and value > 0:
                    return value
        return None

    @cached_property
    def name(self) -> str:
        """The model type without the suffix of a text part."""
        return str(self.get("model_type") or "").removesuffix("_text")

    @cached_property
    def family(self) -> Family:
        """What is known of the model type and of its part's."""
        part = str(setting(self.part, "model_type") or "").removesuffix("_text")
        return family_of((self.name, part))

    @cached_property
    def design(self) -> str:
        """The type whose blocks these are: Llama for every type that differs from it by its name.

        Such as Mistral, Qwen 2, SmolLM 3 and a Granite whose multipliers are 1.
        """
        plain = (self.get("hidden_act") in ("silu", "swish"), self.is_gated, self.norm == "pre")
        of_llama = self.get("rms_norm_eps") is not None and any(map(self.declares, _ROTARY))
        other = (
            *(self.normalizes_qk, self.is_parallel, self.family.branch_norm, self.experts),
            *(self.family.kind not in (None, "decoder"), self.soft_cap),
            *(self.declares(name) for name in _OTHER_MIXERS),
            *(self.number(name) not in (None, 1) for name in _MULTIPLIERS),
        )
        return "llama" if of_llama and all(plain) and not any(other) else self.name

    @cached_property
    def width(self) -> int | None:
        """Width of the residual stream."""
        return self._size(*WIDTHS)

    @cached_property
    def depths(self) -> tuple[int, int] | None:
        """Number of blocks: those of the encoder or the only stack, and those of the decoder."""
        depth, stages = self._size(*_DEPTH), setting(self.part, "depths")
        if depth is None:
            return None
        if isinstance(stages, list | tuple):  # then the depth is their number
            return sum(stages), 0
        is_pair = setting(self.part, "is_encoder_decoder") is not False
        return depth, (self._size(*_DECODER_DEPTH) or 0) if is_pair else 0

    @cached_property
    def depth(self) -> int | None:
        """Number of blocks in all."""
        return None if self.depths is None else sum(self.depths)

    @cached_property
    def vocabulary(self) -> int | None:
        """Number of tokens that the model distinguishes; None for a classifier."""
        is_classifier = self.task.endswith("classification")
        value = None if is_classifier else _number(setting(self.part, "vocab_size"))
        return value if isinstance(value, int) and value > 0 else None

    @cached_property
    def heads(self) -> int | None:
        """Attention heads of a block."""
        return self._size(*HEADS)

    @cached_property
    def head_dim(self) -> float | None:
        """Width of an attention head."""
        declared, width = self._size(*_HEAD_DIM), self.width
        return declared or (width / (self.heads or 1) if width else None)

    @cached_property
    def inner(self) -> int | None:
        """Inner width of the dense feed-forward layers."""
        return self._size(*_INNER)

    @cached_property
    def experts(self) -> int | None:
        """Experts that a router chooses from; None in a dense model."""
        if self.get("feed_forward") not in (None, "moe"):  # the zoo's dense members
            return None
        count = self._size(*EXPERTS)
        return count if count is not None and count > 1 else None

    @cached_property
    def experts_per_token(self) -> int | None:
        """Experts that process each token; None in a dense model."""
        return self._size(*_CHOSEN)

    @cached_property
    def positions(self) -> float | None:
        """Longest sequence that the configuration allows, in tokens."""
        return self.number(*_POSITIONS)

    @cached_property
    def patches(self) -> int | None:
        """Patches of an image that the middle block reads; None where no size is declared.

        Every stage of `depths` after the first halves both sides, as Swin's and ConvNeXt's do.
        """
        image = _sides(self.get("image_size"))
        patch = _sides(self.get("patch_stride", "patch_size"))
        stages = self.get("depths")
        if not image or not patch or (stages is None and self.get("hidden_sizes")):
            return None
        blocks = stages if isinstance(stages, list | tuple) else [1]
        past = [sum(blocks[: i + 1]) for i in range(len(blocks))]
        halvings = next(i for i, count in enumerate(past) if 2 * count > past[-1])
        rows, columns = (max(1, image[i] // (patch[i] << halvings)) for i in (0, 1))
        return rows * columns

    @cached_property
    def norm(self) -> Literal["pre", "post"]:
        """Where the blocks normalize: before a branch, or after the sum."""
        switch = setting(self.part, "do_layer_norm_before")
        is_post = self.family.post_norm or switch is False
        return "post" if is_post and not setting(self.part, "do_stable_layer_norm") else "pre"

    @cached_property
    def normalizes_qk(self) -> bool:
        """True if queries and keys are normalized, by the family or by a switch."""
        switch = self.get("qk_norm", "use_qk_norm", "qk_layernorm", "attention_layer_norm")
        return switch if isinstance(switch, bool) else self.family.qk_norm

    @cached_property
    def is_parallel(self) -> bool:
        """True if attention and feed-forward read the same state, and both are added."""
        switch = self.get("use_parallel_residual", "parallel_attn", "parallel_blocks")
        return self.family.parallel if switch is None else switch is True

    @property
    def placement(self) -> Placement | None:
        """Where the blocks normalize, by the model type's row; None for a type without a row."""
        if self.name not in FAMILIES:
            return None
        return Placement(
            norm=self.norm,
            branch_norm=float(self.family.branch_norm),
            parallel=float(self.is_parallel),
            qk_norm=float(self.normalizes_qk),
            read=0,
            blocks=self.depth or 0,
        )

    @cached_property
    def init_std(self) -> float | None:
        """Standard deviation of the initial weights, where the configuration says it."""
        return self.number("initializer_range", "init_std")

    @cached_property
    def soft_cap(self) -> float | None:
        """Soft cap on the attention logits; None without one."""
        return self.number("attn_logit_softcapping", "attn_logit_softcap")

    @cached_property
    def is_tied(self) -> bool:
        """True if the output layer is the embedding."""
        return bool(self.get("tie_word_embeddings"))

    @cached_property
    def is_gated(self) -> bool:
        """True if a feed-forward layer has three matrices, not two."""
        switch = setting(self.part, "is_gated_act")
        return bool(switch) if switch is not None else not self.family.two_matrices

    @cached_property
    def scales_rates_by_width(self) -> bool:
        """Whether the logits are divided by a base width, as under μP.

        Rates then follow the base model's size, which the configuration does not say.
        """
        return bool(self.get("dim_model_base", "mup_base_width", "mup_width_scale", "use_mup"))

    @cached_property
    def shape(self) -> DeclaredShape | None:
        """The size; None where width or depth is missing."""
        width, depths = self.width, self.depths
        if not width or not depths or not sum(depths):
            return None
        blocks, active, ends = self._computed(width, depths)
        share = self._counted_share
        return DeclaredShape(
            width=width,
            depth=sum(depths),
            parameters=blocks * share + ends,
            block_parameters=blocks * share,
            active_parameters=active * share + ends,
        )

    @cached_property
    def _counted_share(self) -> float:
        """How many parameters the type's blocks have for each that the formula gives them.

        The formula is a transformer's. Other blocks (Mamba's, RWKV's), shared ones (ALBERT's), and
        parts beside the stack keep their proportion to it as a model grows; it is taken from the
        default model, which is counted.
        """
        row = type_row(str(self.get("model_type")))
        if row is None or row.counted is None:
            return 1.0
        others = {alias: row.settings.get(name) for alias, name in row.aliases.items()}
        default = Declared({**row.attributes, **others, **row.settings}, self.task)
        if not default.width or not default.depths or not sum(default.depths):
            return 1.0
        blocks, _, ends = default._computed(default.width, default.depths)
        rest = row.counted - ends
        return rest / blocks if rest > 0 else 1.0

    def _computed(self, width: int, depths: tuple[int, int]) -> tuple[float, float, float]:
        attention, experts = self._attention(width), self.experts
        matrices = 3 if self.is_gated else 2
        dense = matrices * width * (self.inner or 4 * width)
        depth = sum(depths)
        # A decoder's block attends twice: to itself and to the encoder.
        attentions = (depth + depths[1]) * attention
        embedding = (self._size("vocab_size") or 0) * (self._size(*_EMBEDDED) or width)
        ends = embedding if self.is_tied else 2 * embedding
        if not experts:
            blocks = active = (attentions + depth * dense) * self._narrowing
        else:
            shared, expert = self._expert(width)
            first = int(self._size("first_k_dense_replace") or 0)
            common = attentions + first * dense + (depth - first) * shared
            blocks = common + (depth - first) * experts * expert
            active = common + (depth - first) * (self.experts_per_token or 1) * expert
        return blocks, active, ends

    @cached_property
    def _narrowing(self) -> float:
        """Mean square of the widths of the blocks over that of the last ones.

        A pyramid (Swin) doubles its width from stage to stage.
        """
        stages = setting(self.part, "depths")
        if not isinstance(stages, list | tuple) or not sum(stages):
            return 1.0
        areas = (float(count) * 4.0**-i for i, count in enumerate(reversed(stages)))
        return sum(areas) / sum(stages)

    def _attention(self, width: float) -> float:
        heads = self.heads or 1
        size = self.head_dim or width / heads
        keys = 1 if self.get("multi_query") else self._size(*KEY_HEADS) or heads
        rank = self._size("q_lora_rank")
        if rank:  # latent attention: the latents take the place of the full matrices
            latent = self._size("kv_lora_rank") or rank
            return width * (rank + latent) + (rank + 2 * latent) * heads * 128 + heads * 128 * width
        return 2 * width * size * (heads + keys)

    def _expert(self, width: float) -> tuple[float, float]:
        inner = self._size("moe_intermediate_size", "expert_ffn_hidden_size") or (
            self.inner or 4 * width
        )
        shared = self._size("shared_expert_intermediate_size") or inner * (
            self._size("n_shared_experts") or 0
        )
        return 3 * width * shared, 3 * width * inner


def setting(config: object, name: str) -> object | None:
    """Return one setting of a configuration or a mapping; None where it has none.

    transformers raises a RuntimeError for a setting that differs by layer, which counts as none.
    """
    if isinstance(config, Mapping):
        return config.get(name)
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return None


def _sides(value: object) -> tuple[int, int] | None:
    pair = [value, value] if isinstance(value, int) else value
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    height, width = pair
    is_size = isinstance(height, int) and isinstance(width, int) and min(height, width) > 0
    return (height, width) if is_size else None


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
