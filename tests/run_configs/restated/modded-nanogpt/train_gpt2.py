# Settings of KellerJordan/modded-nanogpt train_gpt2.py @ 01482e15
class Hyperparameters:
    batch_size: int = 8
    device_batch_size: int = 1
    sequence_length: int = 64 * 1024
    num_iterations: int = 1875
    warmup_iters: int = 0
    warmdown_iters: int = 562
    weight_decay: float = 0
    val_loss_every: int = 125
    val_tokens: int = 10485760


optimizer1 = Adam(embedding, lr=0.6, betas=(0.9, 0.95), fused=True)
optimizer2 = Adam(head, lr=0.008, betas=(0.9, 0.95), fused=True)
optimizer3 = Muon(matrices, lr=0.04, momentum=0.95)
optimizer4 = Adam(scalars, lr=0.04, betas=(0.9, 0.95), fused=True)
