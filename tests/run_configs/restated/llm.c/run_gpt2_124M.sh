# Settings of karpathy/llm.c scripts/run_gpt2_124M.sh @ 039904ee
out_dir="log_gpt2_124M"
done_file="$out_dir/DONE_00018865"
while true; do
    if [ -f "$done_file" ]; then
        break
    fi
    mpirun -np 8 ./train_gpt2cu \
                -o $out_dir \
                -v 250 -s 20000 -g 144 \
                -h 1 \
                -b 64 -t 1024 \
                -d 524288 \
                -r 0 \
                -z 1 \
                -c 0.1 \
                -l 0.0006 \
                -q 0.0 \
                -u 700 \
                -n 5000 \
                -y 1 \
                -e "d12"
    sleep 1
done
