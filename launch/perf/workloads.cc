#include "launch/perf/workloads.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/host_files.h"
#include "launch/perf/metrics.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/quantity.h"

namespace accelerate::launcher::perf {
namespace {

std::string text_of(const DocumentNode& node) {
  const std::string& text = node.text();
  if (text.empty()) node.fail("a text");
  return text;
}

std::vector<std::string> texts_of(const DocumentNode& list) {
  std::vector<std::string> texts;
  for (const DocumentNode& each : list.items()) texts.push_back(text_of(each));
  return texts;
}

// Words of a command line: a list of them, or a text.
std::vector<std::string> words_of(const DocumentNode& node) {
  if (node.value().is_array()) return texts_of(node);
  absl::StatusOr<std::vector<std::string>> words = shell_words(text_of(node));
  if (!words.ok()) node.refuse(words.status().message());
  return *std::move(words);
}

void check_metric(const DocumentNode& node) {
  const std::string& metric = node.key();
  const std::vector<std::string> groups(kMetricGroups.begin(), kMetricGroups.end());
  const std::string group(group_of(metric));
  if (std::ranges::find(groups, group) == groups.end()) {
    node.refuse(absl::StrCat("there are no metrics \"", metric, "\": ", suggestion(group, groups)));
  }
  const std::vector<std::string> known = metrics_of(group);
  if (metric == group || std::ranges::find(known, metric) != known.end()) return;
  node.refuse(absl::StrCat("there is no metric \"", metric, "\" among ", absl::StrJoin(known, ", "),
                           did_you_mean(metric, known)));
}

// What an amount may be, beside a share.
const char* amounts_text(Unit unit) {
  switch (unit) {
    case Unit::kNanoseconds: return "a time, as in \"5us\" (ns, us, ms, s)";
    case Unit::kBytes: return "bytes, as in \"64KiB\" (B, kB, MB, GB, KiB, MiB, GiB)";
    case Unit::kNumber: return "a number without a unit, as in \"3\"";
  }
  return "";
}

// Below zero: the text is not an amount of that unit. A plain number is one.
double amount_of(absl::string_view text, Unit unit) {
  double value = 0;
  if (absl::SimpleAtod(text, &value)) return value >= 0 && std::isfinite(value) ? value : -1;
  if (unit == Unit::kNumber) return -1;
  std::string without_blanks(text);
  std::erase(without_blanks, ' ');
  const simulator::Quantity quantity = simulator::parse_quantity(
      without_blanks,
      unit == Unit::kBytes ? simulator::Dimension::kBytes : simulator::Dimension::kNanoseconds);
  return quantity.ok() ? quantity.value : -1;
}

Tolerances tolerances_of(const DocumentNode& owner) {
  Tolerances tolerances;
  const auto node = owner.find("tolerances");
  if (!node) return tolerances;
  for (const DocumentNode& each : node->members("metrics and amounts")) {
    check_metric(each);
    const absl::StatusOr<Tolerance> tolerance = parse_tolerance(each.key(), text_of(each));
    if (!tolerance.ok()) each.refuse(tolerance.status().message());
    tolerances[each.key()] = *tolerance;
  }
  return tolerances;
}

// Options of the launcher whose place is taken by `clusters`, or that run the program several
// times.
void check_options(const DocumentNode& node, const std::vector<std::string>& options) {
  for (const std::string& word : options) {
    const std::string name = word.substr(0, word.find('='));
    if (name == "--simulate") node.refuse("--simulate is what clusters are for");
    for (const char* several : {"--seeds", "--sweep", "--fit"}) {
      if (name == several) node.refuse(absl::StrCat(name, " runs the program several times"));
    }
  }
}

Workload workload_of(const DocumentNode& node, const Tolerances& common) {
  node.check_keys({"name", "program", "options", "clusters", "tolerances"});
  Workload workload;
  workload.name = text_of(node.at("name"));
  if (!accelerate::internal::is_plain_file_name(workload.name)) {
    node.at("name").refuse(absl::StrCat("\"", workload.name, "\" cannot be the name of a file"));
  }
  workload.program = words_of(node.at("program"));
  if (workload.program.empty()) node.at("program").fail("a program");
  if (const auto options = node.find("options")) {
    workload.options = words_of(*options);
    check_options(*options, workload.options);
  }
  const DocumentNode clusters = node.at("clusters");
  workload.clusters =
      clusters.value().is_array() ? texts_of(clusters) : std::vector{text_of(clusters)};
  if (workload.clusters.empty()) clusters.fail("at least one cluster");
  std::set<std::string> seen;
  for (const std::string& cluster : workload.clusters) {
    const auto spec = simulator::ClusterSpec::parse(cluster);
    if (!spec.ok()) clusters.refuse(spec.status().message());
    if (!spec->device) {
      clusters.refuse(absl::StrCat("\"", cluster,
                                   "\" names no device, so nothing takes time; name one, as in \"",
                                   cluster, ":h100\""));
    }
    if (!seen.insert(cluster).second) {
      clusters.refuse(absl::StrCat("\"", cluster, "\" occurs twice"));
    }
  }
  workload.tolerances = tolerances_of(node);
  workload.tolerances.insert(common.begin(), common.end());
  return workload;
}

Workloads workloads_of(const DocumentNode& root, const std::string& path) {
  root.check_keys({"baselines", "tolerances", "workloads"});
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto baselines = root.find("baselines");
  Workloads workloads{.path = path,
                      .baselines = (folder / (baselines ? text_of(*baselines) : "perf")).string(),
                      .list = {}};
  const Tolerances common = tolerances_of(root);
  constexpr char kExpected[] = "a list with at least one workload";
  const DocumentNode list = root.at("workloads", kExpected);
  std::set<std::string> names;
  for (const DocumentNode& each : list.items(kExpected)) {
    workloads.list.push_back(workload_of(each, common));
    const std::string& name = workloads.list.back().name;
    if (!names.insert(name).second) {
      each.refuse(absl::StrCat("two workloads are called \"", name, "\""));
    }
  }
  if (names.empty()) list.fail(kExpected);
  return workloads;
}

}  // namespace

bool Tolerance::allows(double before, double after) const {
  const double change = std::abs(after - before);
  return change <= amount || change <= share * std::abs(before);
}

Tolerance tolerance_of(const Tolerances& tolerances, absl::string_view metric) {
  if (const auto own = tolerances.find(std::string(metric)); own != tolerances.end()) {
    return own->second;
  }
  const auto group = tolerances.find(std::string(metric.substr(0, metric.find('/'))));
  return group != tolerances.end() ? group->second : Tolerance();
}

absl::StatusOr<Tolerance> parse_tolerance(absl::string_view metric, absl::string_view text) {
  absl::string_view number = absl::StripAsciiWhitespace(text);
  if (absl::EndsWith(number, "%")) {
    double value = 0;
    number.remove_suffix(1);
    if (absl::SimpleAtod(absl::StripAsciiWhitespace(number), &value) && value >= 0 &&
        value <= 1000) {
      return Tolerance{.share = value / 100};
    }
  } else if (const double amount = amount_of(number, unit_of(metric)); amount >= 0) {
    return Tolerance{.amount = amount};
  }
  return invalid("expected a share, as in \"1 %\", or ", amounts_text(unit_of(metric)), ", got \"",
                 text, "\"");
}

absl::StatusOr<std::vector<std::string>> shell_words(absl::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && absl::ascii_isspace(c)) {
      in_word = false;
      continue;
    }
    if (!std::exchange(in_word, true)) words.emplace_back();
    if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      words.back() += text[++i];
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote && quote != 0) {
      quote = 0;
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) {
    return invalid("a quote ", std::string(1, quote), " has no end");
  }
  return words;
}

absl::StatusOr<Workloads> load_workloads(const std::string& path) {
  HostFiles files;
  const absl::StatusOr<std::string> text = read_file(files, path);
  if (text.ok()) return parse_workloads(*text, path);
  return absl::Status(text.status().code(), absl::StrCat(text.status().message(),
                                                         "; the file names the programs to "
                                                         "watch, see accelerate perf --help"));
}

absl::StatusOr<Workloads> parse_workloads(const std::string& text, const std::string& path) {
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<Workloads> {
    const Document document = Document::yaml(text, {.name = path, .words_are_texts = true});
    return workloads_of(document.root(), path);
  });
}

}  // namespace accelerate::launcher::perf
