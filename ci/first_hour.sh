#!/usr/bin/env bash
#
# ci/first_hour.sh [debian|wheel] [FOLDER]: a first hour with the files of a release alone, those of ci/release.sh
# (.ci/out/release). Both parts unless one is named.
#
#   debian  Debian 13: apt installs the three packages with what they depend on
#   wheel   Ubuntu 24.04: pip installs the wheel beside torch, in a virtual environment; where the mirror has no Ubuntu,
#           Debian 12 takes its place
#
# In each bare tree the quick tour's program is built and run in its three ways, and a simulated run of an example comes
# early. Prints the minutes of each step, and those from the files to the first simulated run. As root, with a network;
# PIP_INDEX_URL names another registry, ACCELERATE_UBUNTU_MIRROR another mirror of Ubuntu. accelerate/docs/install.md has
# the same commands.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
parts=(debian wheel)
if [[ ${1:-} == @(debian|wheel) ]]; then
  parts=("$1")
  shift
fi
(($# <= 1)) || { echo 'usage: ci/first_hour.sh [debian|wheel] [FOLDER]' >&2; exit 2; }
files=$(realpath "${1:-.ci/out/release}")
readonly parts files
((EUID == 0)) || { echo 'first_hour: nothing was tried: that takes root'; exit 0; }
(cd "$files" && sha256sum --quiet -c SHA256SUMS)
# shellcheck source=tools/dev
. tools/dev
locate_caches
# As tools/dev makes its build root: a host other than Debian has not Debian's keys.
need_commands bwrap=bubblewrap mmdebstrap=mmdebstrap gpg=gpg \
  /usr/share/keyrings/debian-archive-keyring.gpg=debian-archive-keyring
work=$(mktemp -d /var/tmp/accelerate-first.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT

# step WHAT COMMAND...: runs it, and prints how many minutes it took, or its output if it fails.
step() {
  local what=$1 start=$SECONDS
  shift
  "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log"; echo "FAILED: $system: $what"; exit 1; }
  printf 'first_hour: %s: %s: %d min %02d s\n' "$system" "$what" $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60))
}

# tree SUITE PACKAGES MIRROR [OPTIONS]: a bare tree of a distribution.
tree() {
  rm -rf --one-file-system "$work/tree"
  mmdebstrap "${@:4}" --variant=apt "--include=$2" "$1" "$work/tree" ${3:+"$3"}
}

# there SCRIPT [ARGUMENTS]: a script of the folder of the tour, in the tree, with the network of the host and what the host
# knows of it: names, certificates, pip's registry.
there() {
  local name settings=() certificates=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
  while read -r name; do
    case $name in
      PIP_INDEX_URL | PIP_EXTRA_INDEX_URL | PIP_DEFAULT_TIMEOUT | *_proxy | *_PROXY) settings+=(--setenv "$name" "${!name}") ;;
    esac
  done < <(compgen -e)
  if [[ -e $certificates ]]; then
    settings+=(--ro-bind "$certificates" /run/certificates.crt --setenv PIP_CERT /run/certificates.crt)
  fi
  bwrap --bind "$work/tree" / --dev-bind /dev /dev --proc /proc --ro-bind /sys /sys --unshare-pid --die-with-parent \
    --ro-bind /etc/resolv.conf /etc/resolv.conf --clearenv "${settings[@]}" \
    --setenv PATH /tour/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --setenv LANG C.UTF-8 \
    --setenv HOME /root --setenv PIP_NO_CACHE_DIR 1 --setenv DEBIAN_FRONTEND noninteractive \
    --chdir /tour /bin/bash -euo pipefail "$@"
}

# first_run: the time since `began`, when the first simulated run has ended.
first_run() {
  printf 'first_hour: %s: from the files to the first simulated run: %d min %02d s\n' "$system" $(((SECONDS - began) / 60)) \
    $(((SECONDS - began) % 60))
}

# tour: what the quick tour says.
tour() {
  step 'the quick tour is built' there build.sh
  step 'a simulated 2x4:h100' there simulated.sh
  [[ -z $began ]] || first_run
  step 'one process' there one.sh
  step 'two processes' there two.sh
  step 'accelerate test' there test.sh
}

bring_tour() {
  local file
  mkdir -p "$work/tree/tour"
  hosts_file >"$work/tree/etc/hosts"
  for file in train.cc CMakeLists.txt; do
    python3 tools/documents/run_page.py --cut "$file" accelerate/docs/quicktour.md >"$work/tree/tour/$file"
  done
  cd "$work/tree/tour"
  # A bare tree has no lists of packages.
  cat >packages.sh <<'END'
apt-get update
apt-get install -y --no-install-recommends ./*accelerate-cpp*.deb libopenblas0-pthread
END
  # The programs of venv come first in PATH.
  cat >wheel.sh <<'END'
python3 -m venv venv
pip install ./accelerate_cpp-*.whl
END
  cat >torch.sh <<'END'
pip install --no-deps "torch==$1"
pip install "cuda-toolkit[cudart,cupti]<14"
END
  cat >first.sh <<'END'
accelerate simulate 2x4:h100 --report report digits --epochs 1
test -s report/report.html
END
  cat >prefix.sh <<'END'
export CMAKE_PREFIX_PATH=$(python3 -c "import accelerate_cpp; print(accelerate_cpp.PREFIX)")
END
  cat >build.sh <<'END'
[[ -e /usr/bin/accelerate ]] || . ./prefix.sh
cmake -S . -B build -G Ninja
cmake --build build
END
  echo './build/train | grep "ranks: 1, loss"' >one.sh
  echo 'accelerate launch --num_processes 2 ./build/train | grep "ranks: 2, loss"' >two.sh
  cat >simulated.sh <<'END'
accelerate launch --simulate 2x4:h100 --report tour_report ./build/train | grep "ranks: 8, loss"
test -s tour_report/report.html
END
  echo 'accelerate test | grep "The self-test passed"' >test.sh
  cd "$repo"
}

debian() {
  compgen -G "$files/*accelerate-cpp*.deb" >/dev/null || { echo "FAILED: there are no Debian packages in $files"; exit 1; }
  system='Debian 13'
  step 'a bare tree' tree "$suite" g++,cmake,ninja-build "$debian_mirror" "${options[@]}"
  bring_tour
  cp "$files"/*.deb "$work/tree/tour"
  began=$SECONDS
  step 'apt installs the packages' there packages.sh
  tour
}

wheel() {
  local wheel torch packages=g++,cmake,ninja-build,python3-venv
  wheel=$(find "$files" -name 'accelerate_cpp-*.whl' -print -quit)
  [[ -n $wheel ]] || { echo "FAILED: there is no wheel in $files"; exit 1; }
  torch=${wheel##*+torch}
  torch=${torch%%-*}
  system='Ubuntu 24.04'
  # apt trusts no mirror of Ubuntu without its keys, which Debian has in a package.
  local keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  if [[ ! -e $keys ]]; then
    mmdebstrap "${options[@]}" --variant=extract --include=ubuntu-archive-keyring "$suite" "$work/keys" \
      ${debian_mirror:+"$debian_mirror"} >"$work/log" 2>&1 || true
    keys=$work/keys$keys
  fi
  if ! tree noble "$packages" "${ACCELERATE_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}" "${options[@]}" "--keyring=$keys" \
    '--aptopt=Acquire::http::Timeout "20"' '--aptopt=Acquire::Retries "0"' --components=main,universe >"$work/log" 2>&1; then
    echo "first_hour: no Ubuntu could be installed here: $(cause "$work/log" "$work" | sed 's/; see .*//'); Debian 12 takes its place"
    system='Debian 12'
    step 'a bare tree' tree bookworm "$packages" "$debian_mirror" "${options[@]}"
  fi
  bring_tour
  cp "$wheel" "$work/tree/tour"
  began=$SECONDS
  step 'pip installs the wheel' there wheel.sh
  step 'pip installs torch' there torch.sh "$torch"
  step 'the first simulated run' there first.sh
  first_run
  began=''
  tour
}

mapfile -t options < <(apt_options)
# Ubuntu's apt has none: then it is the one that mmdebstrap knows.
debian_mirror=$(mirror) || debian_mirror=''
for part in "${parts[@]}"; do
  started=$SECONDS
  "$part"
  echo "first_hour: $part: $((SECONDS - started)) s"
done
echo 'first_hour: all well'
