# Settings of AI-Hypercomputer/maxtext (a fork) end_to_end/test_llama2_add_chinese.sh
idx=$(date +%Y-%m-%d-%H-%M)
python3 -u MaxText/train.py MaxText/configs/base.yml \
 run_name=runner_${idx} \
 model_name='llama2-7b-add-chinese' \
 ici_tensor_parallelism=4 \
 steps=10000 \
 warmup_steps_fraction=0.0001 \
 eval_interval=16 \
 checkpoint_period=512 \
 max_target_length=16 \
 per_device_batch_size=0.125 \
 base_output_directory=out \
 attention=dot_product
