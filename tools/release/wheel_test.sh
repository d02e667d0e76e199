#!/usr/bin/env bash
#
# The wheel of a small tree has what an installer needs, and its Python module does what it says with a launcher that a
# script stands for.
set -euo pipefail
work=${TEST_TMPDIR:-$(mktemp -d)}
readonly work tree=$work/tree site=$work/site

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

mkdir -p "$tree"/{bin,lib,examples,share/accelerate-cpp}
echo '{"version": "1.2.3", "libtorch": "9.8.7", "cxx11_abi": 1}' >"$tree/share/accelerate-cpp/release.json"
echo library >"$tree/lib/libone.so.1.2.3"
ln -s libone.so.1.2.3 "$tree/lib/libone.so"
ln -s accelerate "$tree/bin/accelerate-launch"
echo data >"$tree/examples/digits"
chmod +x "$tree/examples/digits"
cat >"$tree/bin/accelerate" <<'END'
#!/bin/sh
# Says what it was called with, and writes what the real one would.
echo "$0 $*" >>"$SAID"
case $1 in
  launch)
    while [ "$1" != --report ]; do shift; done
    [ "$3" != ./fails ] || { echo 'rank 1 failed' >&2; exit 3; }
    mkdir -p "$2"
    echo '{"ranks": 8, "steps": {"median_step": {"seconds": 0.5}}, "failure": null}' >"$2/summary.json" ;;
  simulate)
    while [ "$1" != --csv ]; do shift; done
    printf 'cluster,step_seconds,state\n1x8:h100,0.5,fits\n"2x8:h100,mem=1GB",,out of memory\n' >"$2" ;;
  plan) echo '[{"layout": "dp_shard 8", "fits": true, "step_seconds": 0.25}]' ;;
esac
END
chmod +x "$tree/bin/accelerate"

wheel=$(python3 -B tools/release/wheel.py "$tree" "$work/out")
[[ ${wheel##*/} == accelerate_cpp-1.2.3+torch9.8.7-py3-none-linux_*.whl ]] || fail "the wheel is $wheel"
cp "$wheel" "$work/first"
python3 -B tools/release/wheel.py "$tree" "$work/out" >/dev/null
cmp "$wheel" "$work/first" || fail 'the same tree gives another wheel'
[[ $(ls "$work/out") == "${wheel##*/}" ]] || fail "beside the wheel are $(ls "$work/out")"

# As an installer does it: each file with its checksum and its rights.
python3 -B - "$wheel" "$site" <<'END'
import base64, csv, hashlib, io, os, sys, zipfile
wheel, site = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    info = "accelerate_cpp-1.2.3+torch9.8.7.dist-info"
    rows = list(csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode())))
    assert [row[0] for row in rows] == names, (rows, names)
    for name, digest, size in rows[:-1]:
        data = archive.read(name)
        assert len(data) == int(size), name
        assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), name
        archive.extract(name, site)
        os.chmod(os.path.join(site, name), archive.getinfo(name).external_attr >> 16 & 0o777)
    assert b"\nVersion: 1.2.3+torch9.8.7\n" in archive.read(f"{info}/METADATA")
    assert b"accelerate = accelerate_cpp.__main__:main" in archive.read(f"{info}/entry_points.txt")
    assert archive.read("accelerate_cpp/lib/libone.so") == b"INPUT ( libone.so.1.2.3 )\n"
    assert archive.read("accelerate_cpp/lib/libone.so.1.2.3") == b"library\n"
    assert "accelerate_cpp/bin/accelerate-launch" not in names, "a wheel has no links"
END

export SAID=$work/said PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1
python3 - <<'END'
import os
import accelerate_cpp
summary = accelerate_cpp.simulate("2x4:h100", ["./train", "--epochs", "1"], seed=7, options=["--mixed_precision", "bf16"])
assert summary["ranks"] == 8, summary
said = open(os.environ["SAID"]).read()
assert "launch --simulate 2x4:h100 --simulate_seed 7 --report" in said, said
assert said.endswith("--mixed_precision bf16 ./train --epochs 1\n"), said
rows = accelerate_cpp.table({"one": summary})
assert rows == [{"name": "one", "ranks": 8, "steps/median_step/seconds": 0.5}], rows
kept = os.path.join(os.environ["SAID"] + "_report")
accelerate_cpp.simulate("1x1", ["./train"], report=kept)
assert os.path.exists(os.path.join(kept, "summary.json"))
try:
    accelerate_cpp.simulate("1x1", ["./fails"])
    raise AssertionError("a failed run has a summary")
except accelerate_cpp.LauncherError as error:
    assert error.exit_code == 3 and "rank 1 failed" in str(error), error
rows = accelerate_cpp.sweep(["1x8:h100", "2x8:h100,mem=1GB"], ["./train"])
assert rows[0] == {"cluster": "1x8:h100", "step_seconds": 0.5, "state": "fits"}, rows
assert rows[1]["cluster"] == "2x8:h100,mem=1GB" and rows[1]["step_seconds"] == "", rows
assert open(accelerate_cpp.example("digits")).read() == "data\n"
try:
    accelerate_cpp.simulate("1x1", [accelerate_cpp.example("digits")])
    raise AssertionError("an example runs without LibTorch")
except RuntimeError as error:
    assert "pip install torch==9.8.7" in str(error), error
try:
    accelerate_cpp.example("gone")
    raise AssertionError("an example that is not there has a path")
except ValueError as error:
    assert "known: digits" in str(error), error
END

# plan FOUND: what `plan` says where the folder beside has a torch of the version FOUND, or none.
plan() {
  rm -rf "$site/torch"
  if [[ -n ${1:-} ]]; then
    mkdir -p "$site/torch/share/cmake/Torch"
    echo "__version__ = '$1'" >"$site/torch/version.py"
    echo "set(TORCH_CXX_FLAGS \"-D_GLIBCXX_USE_CXX11_ABI=${2:-1}\")" >"$site/torch/share/cmake/Torch/TorchConfig.cmake"
  fi
  python3 -c 'import accelerate_cpp; print(accelerate_cpp.plan("llama-7b", "1x8:h100", batch_size=8, exact=True))' 2>&1 || true
}
# says TEXT SAID: SAID has TEXT in it.
says() { [[ $2 == *"$1"* ]] || fail "said \"$2\" instead of \"$1\""; }
says "'layout': 'dp_shard 8'" "$(plan 9.8.7+cpu)"
says 'plan llama-7b --on 1x8:h100 --json --batch_size 8 --exact' "$(tail -n 1 "$SAID")"
says 'is built for LibTorch 9.8.7 (C++11 ABI: 1), and torch 2.6.0 (C++11 ABI: 1) is in' "$(plan 2.6.0)"
says 'and torch 9.8.7 (C++11 ABI: 0) is in' "$(plan 9.8.7 0)"
says 'pip install torch==9.8.7' "$(plan)"

# refused WORDS: what the command says that does not start a program of the wheel.
refused() {
  local said
  if said=$(python3 -m accelerate_cpp "$@" 2>&1); then fail "without its LibTorch \"$*\" starts"; fi
  echo "$said"
}
# What the user's own program is linked with is not known: with another torch beside the wheel the command warns.
readonly own=(launch --report "$work/r" ./train)
says 'accelerate simulate: Accelerate for C++ 1.2.3 is built for' "$(refused simulate 2x4 digits --csv "$work/csv")"
says 'there is no torch in' "$(refused launch --num_processes 2 "$site/accelerate_cpp/examples/digits")"
says 'accelerate simulate: Accelerate for C++' "$(refused simulate --from_dump=dumps)"
[[ -z $(python3 -m accelerate_cpp "${own[@]}" 2>&1) ]] || fail 'a program of the user is warned of a torch that is not there'
plan 2.6.0 >/dev/null
says 'accelerate launch: warning: Accelerate for C++ 1.2.3 is built for LibTorch 9.8.7' "$(python3 -m accelerate_cpp "${own[@]}" 2>&1)"
says 'note: Accelerate for C++ 1.2.3' "$(python3 -c 'import accelerate_cpp; accelerate_cpp.simulate("1x1", ["./fails"])' 2>&1 || true)"

# The programs of the page about it.
plan 9.8.7 >/dev/null
for program in one_run sweep layouts; do
  python3 -B tools/documents/run_page.py --cut $program.py accelerate/docs/plan_from_python.md >"$work/$program.py"
done
(
  cd "$work"
  says "{'median_step': {'seconds': 0.5}}" "$(python3 one_run.py)"
  [[ -s report/summary.json ]] || fail 'the page keeps no report'
  says "'cluster': '1x8:h100', 'step_seconds': 0.5" "$(python3 sweep.py)"
  says 'dp_shard 8 0.25' "$(python3 layouts.py)"
)
rm -r "$site/torch"

# The command: the launcher in its place, unless it would start what needs a LibTorch that is not there.
says "bin/accelerate launch ./train" "$(python3 -m accelerate_cpp launch --report "$work/r" ./train >/dev/null && tail -n 1 "$SAID" | sed 's/ --report [^ ]*//')"
if said=$(python3 -m accelerate_cpp test 2>&1); then fail 'the self-test starts without LibTorch'; fi
says 'accelerate test: Accelerate for C++ 1.2.3 is built for LibTorch 9.8.7' "$said"
echo 'wheel: all well'
