# Settings of karpathy/nanoGPT config/finetune_shakespeare.py (from knowledge of the repository)
out_dir = "out-shakespeare"
eval_interval = 5
eval_iters = 40
dataset = "shakespeare"
init_from = "gpt2-xl"
batch_size = 1
gradient_accumulation_steps = 32
max_iters = 20
learning_rate = 3e-5
decay_lr = False
