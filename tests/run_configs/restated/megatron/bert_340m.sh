# Settings of NVIDIA/Megatron-LM examples/bert/train_bert_340m_distributed.sh @ 157006d6
BERT_MODEL_ARGS=(
    --num-layers 24
    --hidden-size 1024
    --num-attention-heads 16
    --seq-length 512
    --max-position-embeddings 512
)
TRAINING_ARGS=(
    --micro-batch-size 4
    --global-batch-size 32
    --train-iters 1000000
    --weight-decay 1e-2
    --clip-grad 1.0
    --fp16
    --lr 0.0001
    --lr-decay-iters 990000
    --lr-decay-style linear
    --min-lr 1.0e-5
    --lr-warmup-fraction .01
)
torchrun --nproc_per_node 8 --nnodes 1 pretrain_bert.py ${BERT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]}
