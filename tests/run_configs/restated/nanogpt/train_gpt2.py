# Settings of karpathy/nanoGPT config/train_gpt2.py @ 11ce254d (a fork)
wandb_project = "owt"
batch_size = 104
block_size = 1024
gradient_accumulation_steps = 128
max_iters = 600000
lr_decay_iters = 600000
eval_interval = 1000
eval_iters = 200
weight_decay = 1e-1
