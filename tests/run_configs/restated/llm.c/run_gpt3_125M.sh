# Settings of karpathy/llm.c scripts/run_gpt3_125M.sh @ 72698a5b
out_dir="log_gpt3_125M"
while true; do
    mpirun -np 8 ./train_gpt2cu \
                -o $out_dir \
                -v 250 -s 20000 -g 144 \
                -h 1 \
                -b 32 -t 2048 \
                -d 524288 \
                -z 1 \
                -c 0.1 \
                -l 0.0006 \
                -q 0.1 \
                -u 700 \
                -n 10000 \
                -nk 5 \
                -sl 7.0 \
                -x 572204 \
                -e "gpt3:c768"
done
