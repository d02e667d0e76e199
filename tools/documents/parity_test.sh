#!/usr/bin/env bash
#
# accelerate/docs/parity.md is true for the checkout, and each kind of regression is found in a copy of a small one.
set -euo pipefail
repo=$(dirname "$(realpath .clang-format)")
tools=$repo/tools/documents
small=$TEST_TMPDIR/small
readonly repo tools small

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

python3 "$tools/parity.py" --check "$repo" || fail 'rows of parity.md are not true'

# ---- A checkout of a few files that is right.
mkdir -p "$small/accelerate/config" "$small/accelerate/docs" "$small/accelerate/options" "$small/tools/documents"
echo 'pads is_there' >"$small/tools/documents/hf_names.txt"
printf '# All of them.\npads pad\npads Pads\n' >"$small/tools/documents/hf_functions.txt"
cat >"$small/accelerate/pads.h" <<'END'
struct PadOptions {
  /// Not int64_t dim = 7.
  int64_t dim = 0;
  std::function<bool(int a, int b)> filter = {};
  std::string name = "a, b";
};
template <typename Self>
class Padding {
 public:
  template <typename T = int>
  T pad(const Tensor& tensor, const PadOptions& options = {}, Side side = Side::kPadFirst) const {
    return pad(other = 5);
  }
};
class Pads : public Padding<Pads> {
 public:
  explicit Pads(int size = 3) : size_(size) {}

 private:
  void hidden();
};
enum class Side { kPadFirst, kPadLast };
inline constexpr internal::Check is_there{"there"};
struct Check {
  bool operator()(bool check_device = false) const;
};
END
cat >"$small/accelerate/config/fsdp_plugin.h" <<'END'
struct FullyShardedDataParallelPlugin {
  std::optional<int64_t> depth = std::nullopt;
};
struct Others {
  std::optional<int64_t> height = std::nullopt;
};
END
cat >"$small/accelerate/options/options.cc" <<'END'
constexpr SectionName kSections[] = {
    {Section::kFsdp, "fsdp_config", "fsdp_"},
};
END
cat >"$small/accelerate/options/pad_rows.cc" <<'END'
constexpr Family fsdp = {kFsdp, Section::kFsdp, ""};
constexpr Family megatron = {kMegatron, Section::kMegatron, ""};

constexpr Option kRows[] = {
    peer(kRanks, "size", kInt, "size, or_else(\"4\")", {"Size?", "2"}).or_else("8").exchanged_by("SIZE"),
    fsdp("shard", kBool, "true", "what").field_or("false"),
    fsdp("fsdp_depth", kInt, nullptr, "what"),
    megatron("degree", kInt, nullptr, "what").absent(),
};
END
cat >"$small/accelerate/docs/sharding_options.md" <<'END'
| option | default | variable |
| --- | --- | --- |
| `shard` | false; flag: true | `SHARD` |
END
cat >"$small/accelerate/user.cc" <<'END'
void use(const PadOptions& options, Side side) {
  if (options.dim > 0 && options.filter && side != 0) read("size", "shard", names_of(options));
}
END
cat >"$small/accelerate/pads_test.cc" <<'END'
Tensor padded() {
  // pads.unused()
  return pads.pad(tensor, {.dim = 1});
}

TEST(Pads, Pad) {
  const Tensor tensor = padded();
  const bool there = is_there();
  std::string args = "\ndegree: 3 --size --shard";
  EXPECT_TRUE(use(tensor, there, args));
  use(there, Side::kPadFirst);
  use(there, Side::kPadFirst);
  use(there, Side::kPadFirst);
  use(there, Side::kPadFirst);
  use(there, Side::kPadFirst);
  use(there, Side::kPadFirst);
  pads.far(tensor);
}
END
cat >"$small/tools/documents/parity.txt" <<'END'
# A remark.

## 1. Pads

done | dim=0 | accelerate/pads.h: PadOptions::dim=0, PadOptions::filter={}, PadOptions::name@names_of="a, b",
    Pads::pad | accelerate/pads_test.cc | -
done | Side | accelerate/pads.h: Side | accelerate/pads_test.cc (args) | -
nearest | pad(tensor, dim=0) | accelerate/pads.h: Pads::pad | accelerate/pads_test.cc | a part
done | --size | accelerate/options/options.h: --size=8 $SIZE | accelerate/pads_test.cc | -
nearest | --shard | accelerate/options/options.h: --shard=true $SHARD | accelerate/pads_test.cc | another word
missing | --degree | accelerate/options/options.h: --degree= $DEGREE | accelerate/pads_test.cc (degree) | no engine
END
cat >"$small/tools/documents/parity_parameters.txt" <<'END'
pads | pad | accelerate/pads.h: Pads::pad | accelerate/pads_test.cc | tensor, dim=0, side='pad_first', low=None -> -, **kwargs | a part
pads | Pads | accelerate/pads.h: Pads | accelerate/pads_test.cc | size=3 | -
pads | is_there | accelerate/pads.h: is_there | accelerate/pads_test.cc | check=False -> check_device=false | another name
pads | gone | - | - | a, b=1 | not built
END
python3 "$tools/parity.py" "$small" >"$small/accelerate/docs/parity.md"
said=$(python3 "$tools/parity.py" --check "$small") || fail "a right checkout: $said"
[[ $said == 'parity: 4 done, 4 nearest, 2 missing' ]] || fail "said \"$said\""

# ---- After a change of a file the check says so, although the page was written again.
python3 - "$tools" "$small" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import parity
repo = sys.argv[2]
pads, rows, flags = "accelerate/pads.h", "tools/documents/parity.txt", "accelerate/options/pad_rows.cc"
plugin = "accelerate/config/fsdp_plugin.h"
user, page = "accelerate/user.cc", "accelerate/docs/sharding_options.md"
def read(path):
    with open(f"{repo}/{path}") as file:
        return file.read()
def write(path, text):
    with open(f"{repo}/{path}", "w") as file:
        file.write(text)
for text, path, old, new in [
        ("the default of PadOptions::dim is None, not 0", pads, "dim = 0;", "dim;"),
        ("pads: pad: the default of dim is 1, not 0", pads, "dim = 0;", "dim = 1;"),
        ("pads: pad has no dim", pads, "int64_t dim = 0", "int64_t dims = 0"),
        ("the default of side is Side::kPadLast, not 'pad_first'", pads, "kPadFirst", "kPadLast"),
        ("the default of size is None, not 3", pads, "int size = 3", "int size"),
        ("the default of check_device is true, not false", pads, "check_device = false", "check_device = true"),
        ("accelerate/pads.h has no Pads::pad", pads, "T pad(", "T padded("),
        ("accelerate/pads.h has no Pads::hidden", rows, "Pads::pad |", "Pads::hidden |"),
        ("there is no accelerate/gone.h", rows, "pads.h", "gone.h"),
        ("there is no accelerate/gone_test.cc", rows, "pads_test", "gone_test"),
        ("accelerate/pads_test.cc does not use pad", "accelerate/pads_test.cc", "pads.pad(", "pads.other("),
        ("accelerate/pads_test.cc does not use unused", rows, "pads_test.cc (args)", "pads_test.cc (unused)"),
        ("accelerate/pads_test.cc asserts nothing about far", rows, "pads_test.cc (args)", "pads_test.cc (far)"),
        ("accelerate/pads_test.cc asserts nothing about pad", "accelerate/pads_test.cc", "= padded()", "= zeros()"),
        ("no source but its own reads dim of accelerate/pads.h", user, "options.dim > 0", "options.dim = 0"),
        ("no source but its own reads filter of accelerate/pads.h", user, "options.filter", "true"),
        ("no source but its own reads names_of of accelerate/pads.h", user, "names_of(options)", "options"),
        ("no source but its own reads Side of accelerate/pads.h", user, "Side side", "int side"),
        ("no source but its own reads --size of accelerate/options/options.h", user, '"size"', '"sizes"'),
        ("accelerate/options/options.h: nothing reads size", user, '"size"', '"sizes"'),
        ("accelerate/options/options.h: nothing reads fsdp_depth", plugin, "depth", "width"),
        ("accelerate/options/options.h: nothing reads fsdp_height", flags, "fsdp_depth", "fsdp_height"),
        ("fsdp_depth says that it has no effect", flags, 'nullptr, "what"),\n    meg', 'nullptr, "has no effect"),\n    meg'),
        ("no_python does not say that it has no effect", flags, "fsdp_depth", "no_python"),
        ("pad is done here and nearest in tools/documents/parity_parameters.txt:1", rows, "nearest | pad(", "done | pad("),
        ("hf_functions.txt: no row has pads other", "tools/documents/hf_functions.txt", "pads Pads", "pads other"),
        ("the default of size is 9, not 8", flags, '"8"', '"9"'),
        ("the default of shard is false, not true", flags, '"true"', '"false"'),
        ("size has the variable OTHER, not SIZE", flags, '"SIZE"', '"OTHER"'),
        ("shard has the variable A_SHARD, not SHARD", flags, 'kFsdp, ""', 'kFsdp, "A_"'),
        ("sharding_options.md:3: the default of shard is flag: true", page, "; flag: true", ""),
        ("sharding_options.md:3: the default of shard is false", page, "false", "none"),
        ("sharding_options.md:3: there is no variable SHARED", page, "SHARD`", "SHARED`"),
        ("there is no setting size", flags, '"size"', '"sizes"'),
        ("--degree is not in this version", rows, "missing |", "done |"),
        ("needs a reason", rows, "another word", "-"),
        ("needs a header, and a test", rows, "$SIZE | accelerate/pads_test.cc |", "$SIZE | - |"),
        ("no row has is_there of pads", "tools/documents/parity_parameters.txt", "is_there | acc", "is_here | acc"),
        ("finished is not a state", rows, "nearest |", "finished |")]:
    right = read(path)
    assert old in right, old
    write(path, right.replace(old, new))
    write(parity.PAGE, parity.page(repo))
    found = list(parity.errors(repo))
    assert any(text in each for each in found), f"found {found} instead of {text}"
    write(path, right)
write(parity.PAGE, parity.page(repo))
assert list(parity.errors(repo)) == []
write(rows, read(rows).replace("another word", "other words"))
assert list(parity.errors(repo)) == [f"{parity.PAGE} is old: tools/documents/parity.py . >{parity.PAGE}"]
END
echo 'parity: all well'
