#include "simulator/cluster/cluster_spec.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

// A rank is a thread: more than this is a typing error.
constexpr int kMaxWorldSize = 4096;

absl::Status error_at(absl::string_view text, size_t position, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("bad topology \"", text, "\": expected ", expected,
                                                 " at character ", position + 1, "\n  ", text,
                                                 "\n  ", std::string(position, ' '), "^"));
}

// Reads digits from `position` on and moves it past them.
absl::StatusOr<int> parse_count(absl::string_view text, size_t& position, absl::string_view what) {
  const size_t start = position;
  while (position < text.size() && absl::ascii_isdigit(text[position])) ++position;
  int value = 0;
  if (!absl::SimpleAtoi(text.substr(start, position - start), &value) || value < 1 ||
      value > kMaxWorldSize) {
    return error_at(text, start, absl::StrCat("a number of ", what, " from 1 to ", kMaxWorldSize));
  }
  return value;
}

}  // namespace

std::string ClusterSpec::to_string() const { return absl::StrCat(num_nodes, "x", ranks_per_node); }

absl::StatusOr<ClusterSpec> ClusterSpec::parse(absl::string_view text) {
  size_t position = 0;
  absl::StatusOr<int> nodes = parse_count(text, position, "nodes");
  if (!nodes.ok()) return nodes.status();
  if (position >= text.size() || text[position] != 'x') return error_at(text, position, "'x'");
  ++position;
  const size_t ranks_at = position;
  absl::StatusOr<int> ranks = parse_count(text, position, "ranks per node");
  if (!ranks.ok()) return ranks.status();
  if (position != text.size()) return error_at(text, position, "the end");
  if (*nodes * *ranks > kMaxWorldSize) {
    return error_at(text, ranks_at, absl::StrCat("at most ", kMaxWorldSize, " ranks in all"));
  }
  return ClusterSpec{.num_nodes = *nodes, .ranks_per_node = *ranks};
}

}  // namespace accelerate::simulator
