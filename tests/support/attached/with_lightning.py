"""A Lightning module whose own forward is never called, with a clip."""

import warnings

import lightning
import torch
from transformers import GPT2Config, GPT2LMHeadModel

warnings.filterwarnings("ignore")
lightning.seed_everything(0, verbose=False)
shape = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 16}


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
        self.scale = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, index):
        loss = self.model(batch, labels=batch).loss * self.scale
        print(repr(loss.item()))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.Trainer(
    max_steps=12,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    gradient_clip_val=1.0,
).fit(Module(), torch.utils.data.DataLoader(torch.randint(64, (24, 16)), batch_size=2))
