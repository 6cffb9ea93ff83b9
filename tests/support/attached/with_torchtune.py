"""The recipe of torchtune for full fine-tuning, with its chunked loss, accumulation and a clip."""

import runpy
import sys
from pathlib import Path

import torch

ROWS, LENGTH = 48, 17


class Words(torch.utils.data.Dataset):
    """Tokens that are drawn; also the tokenizer, of which the recipe needs one number."""

    pad_id = 0

    def __init__(self, tokenizer=None):
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(1, 64, (ROWS, LENGTH), generator=generator).tolist()

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"tokens": self.rows[index], "labels": self.rows[index]}


class Printed:
    """Prints the loss, which is the mean over the words of a step, and the gradient norm."""

    def log_config(self, config):
        pass

    def log_dict(self, payload, step):
        print(repr(float(payload["loss"])), repr(float(payload["grad_norm"])))

    def close(self):
        pass


def config():
    """Return the settings of the recipe, as its own file for Llama has them."""
    model = {
        "_component_": "torchtune.models.llama3.llama3",
        **{"vocab_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1},
        **{"embed_dim": 32, "intermediate_dim": 64, "max_seq_len": 32},
    }
    place = {"checkpoint_dir": "in", "checkpoint_files": ["tiny.pt"], "output_dir": "out"}
    tune, own = "torchtune.training.FullModelTorchTuneCheckpointer", "with_torchtune"
    return {
        "model": model,
        "tokenizer": {"_component_": f"{own}.Words"},
        "dataset": {"_component_": f"{own}.Words"},
        "checkpointer": {"_component_": tune, "model_type": "LLAMA3", **place},
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 1e-3},
        "lr_scheduler": {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": 3,
        },
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "metric_logger": {"_component_": f"{own}.Printed"},
        **{"seed": 0, "shuffle": True, "batch_size": 2, "epochs": 1, "max_steps_per_epoch": 12},
        **{"gradient_accumulation_steps": 2, "optimizer_in_bwd": False, "clip_grad_norm": 1.0},
        **{"resume_from_checkpoint": False, "compile": False, "device": "cpu", "dtype": "fp32"},
        **{"output_dir": "out", "log_every_n_steps": 1},
    }


if __name__ == "__main__":
    from omegaconf import OmegaConf
    from torchtune.config import instantiate

    torch.manual_seed(0)
    OmegaConf.save(config(), "tiny.yaml")
    Path("in").mkdir(exist_ok=True)
    torch.save(instantiate(OmegaConf.create(config()["model"])).state_dict(), "in/tiny.pt")
    recipes = Path(sys.modules["torchtune"].__file__).parent.parent / "recipes"
    sys.argv = [str(recipes / "full_finetune_single_device.py"), "--config", "tiny.yaml"]
    runpy.run_path(sys.argv[0], run_name="__main__")  # as `tune run` does
