# Settings of huggingface/transformers (a fork) examples/pytorch/torchacc/llama3/run_native.sh @ 5e8e3457
[ -z "$WORLD_SIZE" ] && WORLD_SIZE=1
BS=1
SEQLEN=4096
NPROC_PER_NODE=8
PRECISION="bf16=true"
torchrun --nproc_per_node $NPROC_PER_NODE \
    --nnodes $WORLD_SIZE \
    ../../language-modeling/run_clm.py \
    --num_train_epochs 2 \
    --per_device_train_batch_size $BS \
    --do_train \
    --output_dir /tmp/test-clm \
    --config_name ./Meta-Llama-3-8B/ \
    --block_size $SEQLEN \
    --optim adamw_torch \
    --save_strategy no \
    --logging_steps 100 \
    --$PRECISION \
    --fsdp "full_shard" > out.log 2>&1 &
