# Settings of huggingface/transformers examples/research_projects/wav2vec2/finetune_base_100.sh @ 1d2fe0d8
python run_asr.py \
--output_dir="./wav2vec2-base-100h" \
--num_train_epochs="30" \
--per_device_train_batch_size="32" \
--eval_strategy="steps" \
--save_steps="500" \
--logging_steps="50" \
--learning_rate="5e-4" \
--warmup_steps="3000" \
--model_name_or_path="facebook/wav2vec2-base" \
--fp16 \
--dataset_name="librispeech_asr" \
--group_by_length \
--freeze_feature_extractor
