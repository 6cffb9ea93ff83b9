"""Models and model factories as users write them in their own files."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FAST = {"states": 128}

TOKENS, CLASSES, WIDTH = 61, 10, 24


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            causal,
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(causal)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class HandGPT(nn.Module):
    """A language model that returns bare logits `[batch, length, tokens]`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block(causal=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.embed(idx) + self.place(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class NanoGPT(HandGPT):
    """The same model with nanoGPT's return value: (logits, loss) if targets are given."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = super().forward(idx)
        if targets is None:
            return logits[:, -1:], None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class SmallViT(nn.Module):
    """An image classifier in the style of timm: patches, blocks in a Sequential, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, 4, 4)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 16, WIDTH))
        self.blocks = nn.Sequential(*(Block(causal=False) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images).flatten(2).transpose(1, 2) + self.pos_embed
        return self.head(self.norm(self.blocks(x)).mean(1))


class Recurrent(nn.Module):
    """A language model without a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


def tokens(count: int = 4, length: int = 32) -> Tensor:
    """Return sequences that can be learned: each token is followed by the next number."""
    return (7 * torch.arange(count)[:, None] + torch.arange(length)) % TOKENS


def images(count: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % CLASSES
    pattern = torch.randn(CLASSES, 3, 16, 16, generator=generator)
    return pattern[labels] + 0.1 * torch.randn(count, 3, 16, 16, generator=generator), labels


def gpt() -> tuple[nn.Module, Tensor]:
    return HandGPT(), tokens()


def half_gpt() -> tuple[nn.Module, Tensor]:
    return HandGPT().half(), tokens()


def vit() -> tuple[nn.Module, object]:
    return SmallViT(), images()


def lstm() -> tuple[nn.Module, object, object]:
    def loss(output: Tensor, batch: Tensor) -> Tensor:
        return F.cross_entropy(output[:, :-1].flatten(0, 1), batch[:, 1:].flatten())

    return Recurrent(), tokens(), loss


def hugging_face() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=300))


def no_loss() -> tuple[nn.Module, Tensor]:
    return SmallViT(), images()[0]


def no_head() -> tuple[nn.Module, Tensor]:
    return nn.Embedding(300, 32), tokens()


def no_batch() -> nn.Module:
    return HandGPT()


def raises() -> nn.Module:
    raise LookupError("the weights\nare elsewhere")


def rubbish() -> list[int]:
    return [1, 2]
