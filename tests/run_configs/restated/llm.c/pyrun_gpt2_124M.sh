# Settings of karpathy/llm.c scripts/pyrun_gpt2_124M.sh @ 07752a65
torchrun --standalone --nproc_per_node=8 train_gpt2.py \
    --val_loss_every 250 \
    --output_dir pylog_gpt2_124M \
    --model d12 \
    --batch_size 32 \
    --sequence_length 1024 \
    --total_batch_size 524288 \
    --dtype bfloat16 \
    --num_iterations 18865 \
    --weight_decay 0.1 \
    --zero_stage 1 \
    --learning_rate 0.0006 \
    --warmup_iters 700 \
    --learning_rate_decay_frac 0.0
