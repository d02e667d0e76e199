#!/usr/bin/env bash
#
# Runs every example of accelerate/examples in three modes, a shard for each: alone, as two processes
# of the launcher, and on a simulated cluster of two nodes with four ranks each. Those below
# simulator/ are tests of clusters that they make themselves, and so run alone.
#
# A usual run starts most examples in one of the first two modes, and on the cluster those that no other test starts
# there; ci/pages.sh starts all in each mode, by ACCELERATE_EXAMPLE_MODES=all.
set -euo pipefail

# Those that a usual run starts in each mode: what all others consist of.
readonly everywhere=(minimal quickstart complete by_feature/checkpoint_resume)
# Those that it starts as two processes and not alone, because they are about what ranks do together. The others are
# about what each rank does, and run alone.
readonly together=(big_model_load by_feature/comm_hook by_feature/deepspeed by_feature/fsdp by_feature/gradient_accumulation
  by_feature/local_sgd by_feature/long_sequences by_feature/multi_process_metrics by_feature/pipeline by_feature/save_hooks
  by_feature/stream_dataset by_feature/tensor_parallel by_feature/weights_from_python lm programs/distributed_inference
  programs/image_classification programs/megatron_lm_gpt_pretraining)
# Those that //integration_tests/lm:program_test starts on clusters, with more flags.
readonly simulated_elsewhere=(big_model_load by_feature/deepspeed by_feature/fsdp by_feature/long_sequences
  by_feature/quantization by_feature/tensor_parallel lm)

readonly examples=$PWD/accelerate/examples launcher=$PWD/launch/accelerate
failures=0 mode='' ranks=''
tried=()

fail() {
  echo "FAILED: $mode: $*" >&2
  failures=$((failures + 1))
}

# is_left_out NAME: whether this run does not start the example in this mode.
is_left_out() {
  [[ ${ACCELERATE_EXAMPLE_MODES:-} != all && " ${everywhere[*]} " != *" $1 "* ]] || return 1
  case $mode in
    alone) [[ " ${together[*]} " == *" $1 "* ]] ;;
    processes) [[ " ${together[*]} " != *" $1 "* ]] ;;
    simulated) [[ " ${simulated_elsewhere[*]} " == *" $1 "* ]] ;;
  esac
}

# in_folder NAME: where the example NAME runs and leaves its files.
in_folder() {
  mkdir -p "$TEST_TMPDIR/$mode/$1"
  echo "$TEST_TMPDIR/$mode/$1"
}

# example NAME REGEX...: the program ends well, and prints a match of each. Variables: `arguments` of
# the program, `options` of the launcher, and the `cluster` of the simulated mode.
example() {
  local name=$1 program=$examples/$1/${1##*/} said regex command=()
  shift
  tried+=("$name")
  if is_left_out "$name"; then return; fi
  # shellcheck disable=SC2206
  case $mode in
    alone) ;;
    processes) command=("$launcher" launch --num_processes "$ranks" ${options:-}) ;;
    simulated) command=("$launcher" launch --simulate "${cluster:-2x4}" ${options:-}) ;;
  esac
  # shellcheck disable=SC2086
  if ! said=$(cd "$(in_folder "$name")" && "${command[@]}" "$program" ${arguments:-} 2>&1); then
    fail "$name ended with an error and printed: $said"
    return
  fi
  for regex in "$@"; do
    grep -Eq -- "$regex" <<<"$said" || fail "$name does not print \"$regex\" but: $said"
  done
  echo "$mode: $name: all well after $SECONDS s"
}

# leaves NAME FILE...: the example has written them.
leaves() {
  local folder file
  if is_left_out "$1"; then return; fi
  folder=$(in_folder "$1")
  shift
  for file in "$@"; do [[ -s $folder/$file ]] || fail "there is no $folder/$file"; done
}

# in_simulation REGEX...: what is printed where devices have limits and clocks.
in_simulation() {
  if [[ $mode == simulated ]]; then printf '%s\n' "$@"; fi
}

# python_weights: the weights of a net that solves the task, as safetensors' Python package writes
# them. 32 directions: the sum of what relu leaves of their products with a point is its distance
# times 32/pi.
python_weights() {
  python3 - <<'END'
import json, math, struct
angles = [2 * math.pi * i / 32 for i in range(32)]
tensors = {
    'hidden.bias': ([32], [0.0] * 32),
    'hidden.weight': ([32, 2], [f(a) for a in angles for f in (math.cos, math.sin)]),
    'output.bias': ([2], [0.0, -1.2 * 32 / math.pi]),
    'output.weight': ([2, 32], [0.0] * 32 + [1.0] * 32),
}
header, data = {}, b''
for name, (shape, values) in tensors.items():
    packed = struct.pack(f'<{len(values)}f', *values)
    header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [len(data), len(data) + len(packed)]}
    data += packed
text = json.dumps(header).encode()
text += b' ' * (-len(text) % 8)
open('model.safetensors', 'wb').write(struct.pack('<Q', len(text)) + text + data)
END
}

# python_files DIGITS TEXT: what the programs of programs/ read, made in this folder: a folder of
# images for each class, tiny models with BERT's and OPT's layouts, tokens and prompts.
python_files() {
  python3 - "$@" <<'END'
import json, os, random, struct, sys
random.seed(1)

def save(path, tensors):
    header, data = {}, b''
    for name, (shape, dtype, packed) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    open(path, 'wb').write(struct.pack('<Q', len(text)) + text + data)

def floats(*shape):
    count = 1
    for size in shape:
        count *= size
    values = [random.gauss(0, 0.1) for _ in range(count)] if len(shape) > 1 else [0.0] * count
    return list(shape), 'F32', struct.pack(f'<{count}f', *values)

def layer(tensors, name, out, *into):
    tensors[name + '.weight'] = floats(out, *into) if into else ([out], 'F32', struct.pack(f'<{out}f', *[1.0] * out))
    tensors[name + '.bias'] = floats(out)

def integers(rows):
    flat = [value for row in rows for value in (row if isinstance(row, list) else [row])]
    shape = [len(rows)] + ([len(rows[0])] if isinstance(rows[0], list) else [])
    return shape, 'I64', struct.pack(f'<{len(flat)}q', *flat)

raw = open(sys.argv[1], 'rb').read()
size = struct.unpack('<Q', raw[:8])[0]
header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
begin, labels = (header[name]['data_offsets'][0] for name in ('images', 'labels'))
for i in range(400):
    folder = f'images/{data[labels + i]}'
    os.makedirs(folder, exist_ok=True)
    open(f'{folder}/{i:04}.pgm', 'wb').write(b'P5 8 8 16\n' + data[begin + 64 * i:begin + 64 * (i + 1)])

bert, hidden, inner = {}, 32, 64
for name, rows in ('word', 16), ('position', 8), ('token_type', 2):
    bert[f'bert.embeddings.{name}_embeddings.weight'] = floats(rows, hidden)
layer(bert, 'bert.embeddings.LayerNorm', hidden)
for i in range(2):
    at = f'bert.encoder.layer.{i}.'
    for name in 'self.query', 'self.key', 'self.value', 'output.dense':
        layer(bert, f'{at}attention.{name}', hidden, hidden)
    layer(bert, at + 'attention.output.LayerNorm', hidden)
    layer(bert, at + 'intermediate.dense', inner, hidden)
    layer(bert, at + 'output.dense', hidden, inner)
    layer(bert, at + 'output.LayerNorm', hidden)
layer(bert, 'bert.pooler.dense', hidden, hidden)
save('bert/model.safetensors', bert)
json.dump({'num_hidden_layers': 2, 'num_attention_heads': 2, 'hidden_size': hidden}, open('bert/config.json', 'w'))
# Token 3 or 4 somewhere tells the class; 0 is padding.
classes = [random.randrange(2) for _ in range(320)]
texts = [[1] + random.sample([3 + each] + [random.randrange(5, 16) for _ in range(4)], 5) + [2, 0] for each in classes]
save('texts.safetensors', {'input_ids': integers(texts), 'labels': integers(classes)})

opt = {'model.decoder.embed_tokens.weight': floats(256, hidden), 'model.decoder.embed_positions.weight': floats(66, hidden)}
for i in range(2):
    at = f'model.decoder.layers.{i}.'
    for name in 'q_proj', 'k_proj', 'v_proj', 'out_proj':
        layer(opt, f'{at}self_attn.{name}', hidden, hidden)
    layer(opt, at + 'self_attn_layer_norm', hidden)
    layer(opt, at + 'fc1', inner, hidden)
    layer(opt, at + 'fc2', hidden, inner)
    layer(opt, at + 'final_layer_norm', hidden)
layer(opt, 'model.decoder.final_layer_norm', hidden)
save('opt/model.safetensors', opt)
json.dump({'num_hidden_layers': 2, 'num_attention_heads': 2}, open('opt/config.json', 'w'))
text = list(open(sys.argv[2], 'rb').read(33 * 200))
save('tokens.safetensors', {'input_ids': integers([text[33 * i:33 * (i + 1)] for i in range(200)])})
json.dump([text[10 * i:10 * i + 3 + i] for i in range(5)], open('prompts.json', 'w'))
END
}

# Three passes over 1,024 samples in batches of 16 on each rank, each with an evaluation of 200
# samples, of which none counts twice where ranks get more.
run_all() {
  mode=$1 ranks=$2
  local learns='epoch 3: [89][0-9] % of 200 points' batches=$((3 * 1024 / 16 / ranks)) rank simulated
  example minimal "$learns"
  example quickstart "$learns"
  leaves quickstart model/model.safetensors
  example complete "$learns"
  example complete 'resumes from out/checkpoints/checkpoint_2: nothing left to do'
  leaves complete out/complete/metrics.jsonl out/model/model.safetensors
  arguments=5 example by_feature/checkpoint_resume
  example by_feature/checkpoint_resume 'resumes after 4 steps' "$learns"
  example by_feature/early_stopping 'stopped after [0-9]+ steps'
  example by_feature/gradient_accumulation "$learns" \
    "$batches batches, $((batches / 4)) optimizer steps"
  mapfile -t simulated < <(in_simulation '2 batches of 32 for each step')
  cluster=2x4:h100,mem=24KiB,efficiency=ideal example by_feature/automatic_gradient_accumulation \
    '1 batches of 64 for each step' "${simulated[@]}" "$learns"
  example by_feature/local_sgd "$learns"
  example by_feature/multi_process_metrics "$learns" 'gather_for_metrics 200'
  example by_feature/cross_validation "$learns" 'all folds: 9[0-9] % of 200 points'
  mapfile -t simulated < <(in_simulation 'tries 40 samples' 'device: 0 of 24576 bytes in use')
  cluster=2x4:h100,mem=24KiB,efficiency=ideal example by_feature/memory 'tries 64 samples' "${simulated[@]}" "$learns" \
    'still prepared: 0'
  example by_feature/profiler "$learns" 'Self CPU.*CPU total' '[0-9]+\.[0-9]{3}[um]s'
  for ((rank = 0; rank < ranks; ++rank)); do leaves by_feature/profiler "traces/profile_$rank.json"; done
  example by_feature/tracking "$learns"
  leaves by_feature/tracking logs/tracking/metrics.jsonl
  example by_feature/custom_tracker "$learns" "'epoch': 3, 'accuracy': [89][0-9]" "'learning_rate': 0.02"
  example by_feature/comm_hook "$learns"
  example by_feature/schedule_free "$learns"
  mapfile -t simulated < <(in_simulation 'kept: 9[0-9]{6} bytes' 'recomputed: 8[0-9]{5} bytes')
  cluster=2x4:h100,efficiency=ideal example by_feature/activation_checkpointing "$learns" "${simulated[@]}"
  example by_feature/save_hooks "$learns" 'loads 4 tensors'
  leaves by_feature/save_hooks checkpoint/about.txt
  example by_feature/stream_dataset "$learns"
  cluster=1x2 options='--use_parallelism_config --parallelism_config_pp_size 2 --parallelism_config_pp_micro_batches 4' \
    example by_feature/pipeline "$learns"
  (cd "$(in_folder by_feature/weights_from_python)" && python_weights)
  example by_feature/weights_from_python 'epoch 0: 9[5-9] %|epoch 0: 100 %' "$learns"
  leaves by_feature/weights_from_python trained/model.safetensors

  # Whole tasks. Eight ranks have few steps, in which the classifier of texts learns less.
  local files f1='(0\.[89]|1)'
  if [[ $mode == simulated ]]; then f1='[01]'; fi
  files=$(in_folder files)
  (cd "$files" && python_files "$examples/digits/digits.safetensors" "$examples/lm/kjv.txt")
  arguments="--data $files/images --epochs 5" example programs/image_classification \
    'epoch 5: accuracy (0\.[4-9]|1)' 'out/model has the weights of out/checkpoints/checkpoint_[0-4]'
  leaves programs/image_classification out/model/model.safetensors
  arguments="--model $files/bert --data $files/texts.safetensors --epochs 10 --learning_rate 2e-3" \
    example programs/text_classification "epoch 10: f1 $f1"
  leaves programs/text_classification classifier/model.safetensors
  arguments="--model $files/opt/model.safetensors --heads 2 --data $files/tokens.safetensors --max_steps 4" \
    example programs/lm_lora '8 adapters, perplexity [0-9]+'
  leaves programs/lm_lora adapters.safetensors
  arguments="--data $examples/digits/digits.safetensors --checkpointing_steps 3 --max_steps 5" \
    example programs/checkpointing
  arguments="--data $examples/digits/digits.safetensors" example programs/checkpointing \
    'resumes from out/checkpoints/checkpoint_0 after 3 steps' 'steps: accuracy 0\.[5-9]'
  arguments="--model $files/opt --prompts $files/prompts.json --new_tokens 4" \
    example programs/distributed_inference "5 answers to 5 prompts of $ranks ranks: answers.json"
  leaves programs/distributed_inference answers.json
  cluster=1x2 options='--use_megatron_lm --megatron_lm_pp_degree 2 --megatron_lm_num_micro_batches 4' \
    example programs/megatron_lm_gpt_pretraining 'epoch 3: loss (0\.0|[0-9.]+e-)'

  # The larger programs, whose results other tests look at.
  local blocks='--layers 1' data="--data $examples/lm/kjv.txt"
  arguments="--data $examples/digits/digits.safetensors --max_steps 2" example digits "digits: $ranks ranks? on "
  arguments="$data $blocks --heads 2 --hidden 16 --sequence_length 16 --max_steps 2" \
    example lm "lm: $ranks ranks? on .*, loss 5"
  arguments='--max_steps 2' example by_feature/fsdp "fsdp: $ranks ranks? on "
  arguments='--max_steps 2' example by_feature/deepspeed "deepspeed: $ranks ranks? on "
  local where='whole'
  if [[ $mode != alone ]]; then where='column over tp in 4 groups in blocks of 64, 64, 64'; fi
  arguments='--max_steps 2 --sequence_parallel --parallel_loss --print_layout' cluster=1x2 \
    options='--use_parallelism_config --parallelism_config_tp_size 2' example by_feature/tensor_parallel \
    "blocks.0-1.qkv.weight .* $where" 'tensor_parallel: [12] ranks? on '
  arguments='--max_steps 2 --sequence_length 32' cluster=1x2 \
    options='--use_parallelism_config --parallelism_config_cp_size 2' example by_feature/long_sequences \
    'long_sequences: [12] ranks? on .*, loss 5'
  arguments="$blocks --checkpoint model --write --offload_folder offload --broadcast_from_rank0 --device_map {\"\":\"cpu\"}" \
    example big_model_load 'big_model_load: [0-9.]+ MB in '
  arguments="$data $blocks --sequence_length 32 --evaluation_sequences 4 --generate 2 --max_steps 2 --load_in_8bit" \
    example by_feature/quantization 'int8'

  # These make clusters of their own, and fail where they do not show what they are to show.
  if [[ $mode != alone ]]; then return; fi
  example simulator/find_oom 'rank 5 ran out of memory' 'activations'
  example simulator/debug_a_hang 'rank 0' 'with all ranks it ends well'
  example simulator/crash_sweep '[0-9]+ crashes, 0 of them lost something'
  example simulator/compare_networks '2x4:h100,fabric=ethernet +[0-9.]+ ms'
  example simulator/straggler 'rank 6 is the slow one'
}

readonly modes=('alone 1' 'processes 2' 'simulated 8')
if [[ -n ${TEST_SHARD_STATUS_FILE:-} ]]; then touch "$TEST_SHARD_STATUS_FILE"; fi
for index in "${!modes[@]}"; do
  if ((index % ${TEST_TOTAL_SHARDS:-1} == ${TEST_SHARD_INDEX:-0})); then
    # shellcheck disable=SC2086
    run_all ${modes[index]}
  fi
done

for program in "$examples"/*/* "$examples"/*/*/*; do
  name=${program#"$examples"/}
  name=${name%/*}
  [[ $name != simulator/* || $mode == alone ]] || continue
  [[ ! -f $program || ${program##*/} != "${name##*/}" || " ${tried[*]} " == *" $name "* ]] ||
    fail "no line of this test runs $name"
done
((failures == 0))
