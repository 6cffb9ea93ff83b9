# Settings of NVIDIA/Megatron-LM (microsoft) examples/MoE/ds_pretrain_gpt_350M_dense.sh @ 338e237c
SEQ_LEN=2048
NUM_LAYERS=24
HIDDEN_SIZE=1024
NUM_ATTN_HEADS=16
GLOBAL_BATCH_SIZE=256
LR=3.0e-4
MIN_LR=3.0e-5
TRAIN_TOKENS=300000000000
TRAIN_SAMPLES=$(( ${TRAIN_TOKENS} * 3 / ${SEQ_LEN} ))
WARMUP_TOKENS=375000000
LR_DECAY_TOKENS=260000000000
BATCH_SIZE=4
EP_SIZE=1
INIT_STD=0.014
ACTIVATION_CHECKPOINT="true"
megatron_options=" \
        --adam-beta1 0.9 \
        --adam-beta2 0.95 \
        --num-experts ${EP_SIZE} \
        --init-method-std ${INIT_STD} \
        --lr-decay-tokens ${LR_DECAY_TOKENS} \
        --lr-warmup-tokens ${WARMUP_TOKENS} \
        --micro-batch-size ${BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads ${NUM_ATTN_HEADS} \
        --seq-length ${SEQ_LEN} \
        --max-position-embeddings ${SEQ_LEN} \
        --train-tokens ${TRAIN_TOKENS} \
        --train-samples ${TRAIN_SAMPLES} \
        --lr ${LR} \
        --min-lr ${MIN_LR} \
        --lr-decay-style cosine \
        --weight-decay 0.1 \
        --clip-grad 1.0 \
        --fp16"
if [ "${ACTIVATION_CHECKPOINT}" = "true" ]; then
megatron_options="${megatron_options} \
        --checkpoint-activations"
fi
run_cmd="deepspeed pretrain_gpt.py ${megatron_options} &> out.log"
echo ${run_cmd}
eval ${run_cmd}
