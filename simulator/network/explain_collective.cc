#include "simulator/network/explain_collective.h"

#include <numeric>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "simulator/hardware/explain_op.h"
#include "simulator/hardware/presets.h"
#include "simulator/hardware/quantity.h"

namespace accelerate::simulator {
namespace {

constexpr char kExample[] = "all_reduce 25MB";
constexpr char kAverage[] = "avg";
constexpr int kFirstColumn = 14;

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kReduceScatter;
}

absl::Status error(absl::string_view text, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("bad collective \"", text, "\": expected ", expected));
}

std::string bandwidth_text(double gb_per_second) {
  return absl::StrFormat("%.4g GB/s", gb_per_second);
}

void explain_result(const CollectiveQuestion& question, int ranks, double us, Explanation& text) {
  const double algorithm = static_cast<double>(question.bytes) / (1000 * us);
  text.line("bandwidth",
            absl::StrCat(bandwidth_text(algorithm), ", of the bus ",
                         bandwidth_text(algorithm * bus_factor(question.kind, ranks))));
}

void explain_forms(const CollectiveQuestion& question, const ClosedForms& forms,
                   Explanation& text) {
  for (const auto& [algorithm, cost] : forms[static_cast<size_t>(question.kind)]) {
    text.line(to_string(algorithm),
              absl::StrFormat("%s = %s + bytes at %s",
                              time_text(cost.ns(static_cast<double>(question.bytes))),
                              time_text(cost.latency_ns), bandwidth_text(1 / cost.ns_per_byte)));
  }
}

// Whose algorithms the closed forms are, and where they are from; null for those of any library.
struct Library {
  const char* name = nullptr;
  const char* source = nullptr;
};
// By CollectiveLibrary.
constexpr Library kLibraries[] = {
    {},
    {"RCCL 2.21.5", "github.com/ROCm/rccl, src/graph/tuning.cc, restated"},
    {"HCCL", "gitcode.com/cann/hccl, docs, coll_algo_intro"},
    {"HCL", "github.com/HabanaAI/HCL, all_reduce.cpp, restated"},
};

void explain_graph(absl::string_view name, const nccl::Graph& graph, bool one_node,
                   Explanation& text) {
  if (graph.channels == 0) return;
  text.line(name,
            absl::StrFormat(
                "%d at %s", graph.channels,
                one_node ? bandwidth_text(graph.in_node)
                         : absl::StrCat(bandwidth_text(graph.in_node), " in a node, ",
                                        bandwidth_text(graph.between_nodes), " between nodes")));
}

void explain_table(const CollectiveQuestion& question, nccl::Collective collective,
                   const nccl::Tuning& tuning, const nccl::Tuning::Choice& choice,
                   Explanation& text) {
  text.head("  algorithm  protocol    latency     bandwidth         time  channels");
  for (const nccl::Algorithm algorithm : values<nccl::Algorithm>()) {
    for (const nccl::Protocol protocol : values<nccl::Protocol>()) {
      const std::optional<double> us =
          tuning.us(collective, algorithm, protocol, question.bytes, question.reduction);
      if (!us.has_value()) continue;
      const nccl::Tuning::Entry& entry = tuning.entry(collective, algorithm, protocol);
      const bool is_chosen = algorithm == choice.algorithm && protocol == choice.protocol;
      text.head(absl::StrFormat(
          "  %-9s  %-8s %9s %13s %12s %9d%s", to_string(algorithm), to_string(protocol),
          absl::StrFormat("%.1f us", entry.latency_us),
          absl::StrFormat("%.1f GB/s", entry.gb_per_second), time_text(1000 * *us),
          tuning.channels(algorithm, protocol, question.bytes), is_chosen ? "  chosen" : ""));
    }
  }
}

void explain_nccl(const CollectiveQuestion& question, const ClusterSpec& spec,
                  absl::Span<const int> ranks, Explanation& text) {
  const nccl::Machine machine = internal::nccl_machine(spec);
  const std::string version = internal::nccl_version_text(spec.nccl_version);
  const CollectiveCosts costs = internal::nccl_costs(spec, ranks);
  const bool one_node = spec.num_nodes == 1;
  text.head(absl::StrCat("measured: NCCL ", version));
  text.line("NVLink", absl::StrCat(bandwidth_text(machine.nvlink), " of a GPU"));
  if (!one_node) {
    text.line("NIC",
              absl::StrCat(bandwidth_text(machine.nic), ", ", spec.nics_per_node, " a node"));
  }
  const auto collective = internal::nccl_collective(question.kind);
  if (!collective.has_value()) {
    text.head(
        "  NCCL has no model of it: messages at these speeds, and a start like that of a ring");
    text.head("  with LL (estimate)");
    explain_forms(question, costs.forms, text);
    return;
  }
  const nccl::Tuning& tuning = *costs.nccl;
  const nccl::Graphs& graphs = tuning.graphs();
  text.head("channels that the search finds");
  explain_graph("Ring", graphs.ring, one_node, text);
  explain_graph("Tree", graphs.tree, one_node, text);
  explain_graph("NVLS", graphs.nvls, one_node, text);
  text.line("that run",
            absl::StrCat(graphs.channels, graphs.nvls_channels > 0
                                              ? absl::StrCat(", with NVLS ", graphs.nvls_channels)
                                              : ""));
  text.head("times: latency + bytes / bandwidth, with corrections by size");
  const nccl::Tuning::Choice choice =
      tuning.choose(*collective, question.bytes, question.reduction);
  explain_table(question, *collective, tuning, choice, text);
  explain_result(question, static_cast<int>(ranks.size()), choice.us, text);
  text.line("source", "github.com/NVIDIA/nccl, src/graph/tuning.cc and search.cc, restated");
}

}  // namespace

absl::StatusOr<CollectiveQuestion> parse_collective(absl::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  const std::string name = words.empty() ? "" : words[0];
  const std::optional<CollectiveKind> kind = accelerate::value_of<CollectiveKind>(name);
  if (!kind || kind == CollectiveKind::kBarrier) {
    std::vector<std::string> names = accelerate::texts<CollectiveKind>();
    std::erase(names, accelerate::to_string(CollectiveKind::kBarrier));  // which has no bytes
    return error(text, absl::StrCat("a collective (", suggestion(name, names), "), as in \"",
                                    kExample, "\""));
  }
  CollectiveQuestion question{.kind = *kind};
  if (words.size() < 2) return error(text, absl::StrCat("bytes, as in \"", kExample, "\""));
  const Quantity bytes = parse_quantity(words[1], Dimension::kBytes);
  if (!bytes.ok()) {
    return error(text, absl::StrCat(bytes.expected, " at \"", words[1].substr(bytes.position),
                                    "\", as in \"", kExample, "\""));
  }
  question.bytes = static_cast<int64_t>(bytes.value);
  for (size_t i = 2; i < words.size(); ++i) {
    if (i > 2 || words[i] != kAverage || !reduces(question.kind)) {
      return error(
          text, absl::StrCat(reduces(question.kind) && i == 2 ? absl::StrCat("\"", kAverage, "\"")
                                                              : "nothing",
                             " in the place of \"", words[i], "\""));
    }
    question.reduction = nccl::Reduction::kScaled;
  }
  return question;
}

absl::StatusOr<std::string> explain_collective(absl::string_view text, const ClusterSpec& spec) {
  ACCELERATE_ASSIGN_OR_RETURN(const CollectiveQuestion question, parse_collective(text));
  if (!spec.device.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", spec.to_string(), "\" names no device"));
  }
  const int world_size = spec.world_size();
  if (world_size < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a collective of one rank takes no time: name a cluster with more than \"",
                     spec.to_string(), "\", as in \"2x8:", spec.device->name, "\""));
  }
  std::vector<int> ranks(world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  ClusterSpec ideal = spec;
  ideal.device->efficiency = Efficiency::kIdeal;
  const Network network(ideal);
  Explanation out(kFirstColumn);
  out.head(absl::StrCat(text, " of ", world_size, " ranks on ", spec.to_string()));
  const auto [name, source] = kLibraries[static_cast<size_t>(collective_library(spec))];
  out.head(name != nullptr ? absl::StrCat("closed forms of ", name) : "ideal");
  explain_forms(question, network.costs_of(ranks).forms, out);
  explain_result(
      question, world_size,
      static_cast<double>(network.collective(question.kind, ranks, question.bytes).ns) / 1000, out);
  if (name != nullptr) {
    out.line("source", source);
    out.head("A simulation takes the fastest of them (README of simulator/network).");
    return out.finish();
  }
  const bool has_nccl = nccl::applies_to(spec);
  if (has_nccl) explain_nccl(question, spec, ranks, out);
  const bool is_measured = spec.device->efficiency == Efficiency::kMeasured;
  out.head(absl::StrCat(
      "A simulation takes the ", is_measured && has_nccl ? "measured" : "ideal", " time",
      has_nccl ? " (key efficiency of the cluster)." : ": no model of a library is known for it."));
  return out.finish();
}

}  // namespace accelerate::simulator
