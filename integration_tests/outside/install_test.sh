#!/usr/bin/env bash
#
# CMake configures, links and installs the project, and a project of somebody else's finds, links
# and runs what was installed. The objects are Bazel's: ci/cmake.sh compiles them with CMake.
set -euo pipefail

readonly objects=$PWD/integration_tests/outside/built_objects.txt
repo=$(dirname "$(realpath CMakeLists.txt)")
work=$TEST_TMPDIR
readonly repo work

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# quietly COMMAND...: what it says is shown only if it fails.
quietly() {
  "$@" >"$work/log" 2>&1 || { cat "$work/log"; fail "$*"; }
}

# ci/cmake.sh compiles all of this with g++, as the authors of projects do. Here it is clang, without optimisation, and
# LLVM's linker.
# Parsing LibTorch's headers and those that were installed takes most of a source's time: it is done once.
export CXX=$work/c++ LDFLAGS=-fuse-ld=lld
readonly quick=(-DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O0")
cat >"$CXX" <<'END'
#!/usr/bin/env bash
set -euo pipefail
options=() source='' words=("$@")
while (($#)); do
  case $1 in
    -isystem) options+=("$1" "$2"); shift ;;
    -DGTEST_*) ;;
    -D* | -I* | -f* | -std=*) options+=("$1") ;;
    *.cc) source=$1 ;;
  esac
  shift
done
header=()
if [[ -n $source && ${options[*]} == *-DUSE_DISTRIBUTED* && ${options[*]} == *"${0%/*}/installed/"* ]]; then
  compiled=$0-$(sha256sum <<<"${options[*]}" | cut -c 1-16).pch
  (
    flock 9
    [[ -e $compiled ]] ||
      clang++ "${options[@]}" -x c++-header -include torch/torch.h -include accelerate/accelerate.h \
        -fpch-instantiate-templates /usr/include/stdc-predef.h -o "$compiled"
  ) 9>"$compiled.lock"
  header=(-include-pch "$compiled")
fi
exec clang++ "${header[@]}" "${words[@]}"
END
chmod +x "$CXX"

quietly cmake -S "$repo" -B "$work/build" -G Ninja "${quick[@]}" -DACCELERATE_EXAMPLES=OFF -DACCELERATE_PRECOMPILED=OFF \
  "-DACCELERATE_BUILT_OBJECTS=$objects"
quietly cmake --build "$work/build"
quietly cmake --install "$work/build" --prefix "$work/first"
# Nothing in it may point to where it was built or first installed.
mv "$work/first" "$work/installed"
rm -rf "$work/build"

# A copy, because a baseline is written beside the sources.
cp -r "$repo/integration_tests/outside/consumer" "$work/consumer_sources"
quietly cmake -S "$work/consumer_sources" -B "$work/consumer" -G Ninja "-DCMAKE_PREFIX_PATH=$work/installed" "${quick[@]}"
quietly cmake --build "$work/consumer"

readonly train=$work/consumer/train launcher=$work/installed/bin/accelerate

# prints EXPECTED COMMAND...
prints() {
  local expected=$1 said
  shift
  said=$("$@" 2>&1) || fail "$* said: $said"
  [[ $said == "$expected" ]] || fail "$* said \"$said\" instead of \"$expected\""
  echo "$expected: ${*##*/}"
}

prints 'ranks 2 loss 0.17720' "$train" --cluster 1x2
prints 'ranks 2 loss 0.17720' "$train" --ranks 2
prints 'ranks 2 loss 0.17720' "$launcher" launch --simulate 1x2 "$train"
prints '[rank 0] ranks 2 loss 0.17720' "$launcher" launch --num_processes 2 "$train"

prints 'ranks 1 loss 0.17720' "$train" --log "$work/logs"
[[ $(wc -l <"$work/logs/line/metrics.jsonl") == 5 ]] || fail 'there are not five lines of losses'
ls "$work"/logs/line/events.out.tfevents.* >/dev/null || fail 'there is no event file'

quietly cmake --build "$work/consumer" --target train_costs_accept
quietly ctest --test-dir "$work/consumer" --output-on-failure
sed -i 's|"count/kernels": [0-9]*|"count/kernels": 1|' "$work/consumer_sources/perf/train.json"
said=$(ctest --test-dir "$work/consumer" --output-on-failure 2>&1) && fail 'another number of kernels is as before'
[[ $said == *'count/kernels'*"--target train_costs_accept"* ]] || fail "the test of what train costs says: $said"

"$work/consumer/configure" "$work/bf16.yaml" || fail 'a program cannot write a configuration'
said=$("$launcher" launch --config_file "$work/bf16.yaml" --dry_run "$train" 2>&1) || fail "launch said: $said"
[[ $said == *ACCELERATE_MIXED_PRECISION=bf16* ]] || fail "the configuration of a program gives: $said"

# A copy of an example is a project of its own.
cp -r "$repo/accelerate/examples/quickstart" "$work/quickstart"
quietly cmake -S "$work/quickstart" -B "$work/quickstart/build" -G Ninja "-DCMAKE_PREFIX_PATH=$work/installed" \
  "${quick[@]}"
quietly cmake --build "$work/quickstart/build"
quietly ctest --test-dir "$work/quickstart/build" --output-on-failure
grep '^100% tests passed, 0 tests failed out of 3' "$work/log" || fail 'quickstart has no three tests'

# refuses EXPECTED EDIT: the package with this edit is that of another LibTorch, and says so before anything is compiled.
refuses() {
  local package said
  package=$(dirname "$(find "$work/installed" -name AccelerateConfig.cmake)")
  # Beside it, because a package finds the rest of the installation from its own place.
  cp -r "$package" "$package.other"
  package+=.other
  sed -i "$2" "$package/AccelerateConfig.cmake"
  ! said=$(cmake -S "$work/quickstart" -B "$work/quickstart/build" "-DAccelerate_DIR=$package" 2>&1) ||
    fail "CMake takes a package with $2"
  said=$(tr -s '[:space:]' ' ' <<<"$said")
  [[ $said == *"$1"* ]] || fail "a package with $2 says: $said"
  rm -r "$package"
}
refuses 'Accelerate was built with LibTorch 9.8.7 (C++11 ABI: 1), and LibTorch 2' \
  's/accelerate_torch_version "2[0-9.]*"/accelerate_torch_version "9.8.7"/; s/built with LibTorch 2[0-9.]*/built with LibTorch 9.8.7/'
refuses ' (C++11 ABI: 0), and LibTorch 2' 's/accelerate_torch_abi STREQUAL "1"/accelerate_torch_abi STREQUAL "0"/; s/"1), and/"0), and/'

# Its programs are not started with another LibTorch than theirs.
readonly release=$work/installed/share/accelerate-cpp/release.json
cp "$release" "$work/release.json"
sed -i 's/"libtorch": "[^"]*"/"libtorch": "9.8.7"/' "$release"
! said=$("$launcher" test 2>&1) || fail 'the self-test starts with another LibTorch'
[[ $said == 'accelerate test: Accelerate was built with LibTorch 9.8.7 (C++11 ABI: 1), and LibTorch 2'* ]] ||
  fail "with another LibTorch accelerate test says: $said"
mv "$work/release.json" "$release"

# The headers that the table of HF Accelerate's names sends its reader to.
while read -r header; do
  [[ -f $work/installed/include/accelerate/$header ]] || fail "$header of migration_names.md is not installed"
done < <(grep -oE '`(accelerate|trackers)/[[:alnum:]_/]+\.h`' "$repo/accelerate/docs/migration_names.md" | tr -d '`' | sort -u)

version=$("$launcher" --version)
[[ $version == "accelerate "*$'\nBackends: '*gloo* ]] || fail "the launcher's version is \"$version\""
for page in accelerate accelerate-launch accelerate-simulate; do
  [[ $(head -n 1 "$work/installed/share/man/man1/$page.1") == .TH* ]] || fail "man has no page $page"
done
bash -c "source '$work/installed/share/bash-completion/completions/accelerate' && complete -p accelerate" >/dev/null ||
  fail 'bash does not complete accelerate'
for file in zsh/site-functions/_accelerate fish/vendor_completions.d/accelerate.fish; do
  grep -q estimate-memory "$work/installed/share/$file" || fail "$file does not know the commands"
done
! ldd "$launcher" | grep torch || fail 'the launcher is linked with LibTorch'
readonly torch=$(realpath "$(ldd "$train" | awk '$1 ~ /^libtorch_cpu/ { print $3 }')")
[[ $("$launcher" env) == *"LibTorch version: "*" ($torch, which "* ]] ||
  fail "accelerate env does not tell of $torch, which programs link"
for link in "$work"/installed/bin/accelerate-*; do
  [[ ! -L $link || $(readlink "$link") == accelerate ]] || fail "$link leads elsewhere"
done

# The pages that a reader follows with what is installed, as accelerate/docs/install.md leaves it, all in the
# folder of the quick tour. They compile without optimisation, as a reader's project does. The quick tour
# is the first, because it builds the program that most of the others start; commands.md is the last, because it
# leaves a configuration that `accelerate launch` reads.
mkdir "$work/pages" "$work/home"
ln -s "$work/installed" "$work/home/accelerate"
# What pages suppose: the example lm, its text, and the file that the Python of weights_from_python.md writes.
mkdir "$work/examples"
cp -L accelerate/examples/lm/lm "$work/examples"
cp -L accelerate/examples/lm/kjv.txt "$work/pages"
mkdir "$work/pages/from_python"
cp -L integration_tests/outside/from_python/model.safetensors "$work/pages/from_python"
ln -s build/train "$work/pages/train"
export HOME=$work/home OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
for page in accelerate/docs/{quicktour,install,simulator_accuracy,slurm,from_cluster_to_simulator,find_oom,concepts_seed} \
  accelerate/docs/{debug_a_hang,write_a_simulated_test,weights_from_python,launching,debugging,backends} \
  accelerate/docs/{deepspeed,sharding,concepts_sharding,comparing_setups,logging,estimate_memory,cpus,devices,precision,sagemaker} \
  simulator/hardware/README accelerate/docs/commands; do
  PATH=$work/installed/bin:$work/examples:$PATH CMAKE_PREFIX_PATH=$work/installed OMP_NUM_THREADS=1 \
    python3 "$repo/tools/documents/run_page.py" "$repo/$page.md" "$work/pages" ||
    fail "$page.md does not do what it says"
done
echo 'install: all well'
