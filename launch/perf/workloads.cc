#include "launch/perf/workloads.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include <yaml-cpp/yaml.h>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/platform/host_files.h"
#include "launch/perf/metrics.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/quantity.h"

namespace accelerate::launcher::perf {
namespace {

// A value of the file that is not as expected.
struct Problem {
  YAML::Mark mark;
  std::string message;
};

[[noreturn]] void refuse(const YAML::Node& node, std::string message) {
  throw Problem{node.Mark(), std::move(message)};
}

void check_keys(const YAML::Node& map, const std::string& what,
                const std::vector<std::string>& known) {
  if (!map.IsMap()) refuse(map, absl::StrCat(what, ": expected keys and values"));
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse(entry.first,
             absl::StrCat(what, ": unknown key \"", key, "\": ", suggestion(key, known)));
    }
    if (!seen.insert(key).second)
      refuse(entry.first, absl::StrCat(what, ": \"", key, "\" occurs twice"));
  }
}

std::string text_of(const YAML::Node& node, const std::string& what) {
  if (!node.IsScalar() || node.Scalar().empty())
    refuse(node, absl::StrCat(what, ": expected a text"));
  return node.Scalar();
}

std::vector<std::string> texts_of(const YAML::Node& list, const std::string& what) {
  std::vector<std::string> texts;
  for (const YAML::Node& each : list) texts.push_back(text_of(each, what));
  return texts;
}

// Words of a command line: a list of them, or a text.
std::vector<std::string> words_of(const YAML::Node& node, const std::string& what) {
  if (node.IsSequence()) return texts_of(node, what);
  absl::StatusOr<std::vector<std::string>> words = shell_words(text_of(node, what));
  if (!words.ok()) refuse(node, absl::StrCat(what, ": ", words.status().message()));
  return *std::move(words);
}

void check_metric(const YAML::Node& node, const std::string& metric) {
  const std::vector<std::string> groups(kMetricGroups.begin(), kMetricGroups.end());
  const std::string group(group_of(metric));
  if (std::ranges::find(groups, group) == groups.end()) {
    refuse(node, absl::StrCat("tolerances: there are no metrics \"", metric,
                              "\": ", suggestion(group, groups)));
  }
  const std::vector<std::string> known = metrics_of(group);
  if (metric == group || std::ranges::find(known, metric) != known.end()) return;
  refuse(node, absl::StrCat("tolerances: there is no metric \"", metric, "\" among ",
                            absl::StrJoin(known, ", "), did_you_mean(metric, known)));
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

Tolerances tolerances_of(const YAML::Node& node) {
  Tolerances tolerances;
  if (!node.IsDefined()) return tolerances;
  if (!node.IsMap()) refuse(node, "tolerances: expected metrics and amounts");
  for (const auto& entry : node) {
    const std::string metric = text_of(entry.first, "tolerances");
    check_metric(entry.first, metric);
    const absl::StatusOr<Tolerance> tolerance =
        parse_tolerance(metric, text_of(entry.second, metric));
    if (!tolerance.ok()) {
      refuse(entry.second,
             absl::StrCat("tolerances: ", metric, ": ", tolerance.status().message()));
    }
    tolerances[metric] = *tolerance;
  }
  return tolerances;
}

// Options of the launcher whose place is taken by `clusters`, or that run the program several
// times.
void check_options(const YAML::Node& node, const std::vector<std::string>& options) {
  for (const std::string& word : options) {
    const std::string name = word.substr(0, word.find('='));
    if (name == "--simulate") refuse(node, "options: --simulate is what clusters are for");
    for (const char* several : {"--seeds", "--sweep", "--fit"}) {
      if (name == several)
        refuse(node, absl::StrCat("options: ", name, " runs the program several times"));
    }
  }
}

Workload workload_of(const YAML::Node& node, const Tolerances& common) {
  check_keys(node, "a workload", {"name", "program", "options", "clusters", "tolerances"});
  Workload workload;
  for (const char* key : {"name", "program", "clusters"}) {
    if (!node[key].IsDefined()) refuse(node, absl::StrCat("a workload has no \"", key, "\""));
  }
  workload.name = text_of(node["name"], "name");
  if (!accelerate::internal::is_plain_file_name(workload.name)) {
    refuse(node["name"],
           absl::StrCat("name: \"", workload.name, "\" cannot be the name of a file"));
  }
  workload.program = words_of(node["program"], "program");
  if (workload.program.empty()) refuse(node["program"], "program: expected a program");
  if (node["options"].IsDefined()) workload.options = words_of(node["options"], "options");
  check_options(node["options"], workload.options);
  const YAML::Node clusters = node["clusters"];
  workload.clusters = clusters.IsSequence() ? texts_of(clusters, "clusters")
                                            : std::vector{text_of(clusters, "clusters")};
  if (workload.clusters.empty()) refuse(clusters, "clusters: expected at least one");
  std::set<std::string> seen;
  for (const std::string& cluster : workload.clusters) {
    const auto spec = simulator::ClusterSpec::parse(cluster);
    if (!spec.ok()) refuse(clusters, std::string(spec.status().message()));
    if (!spec->device) {
      refuse(clusters, absl::StrCat("clusters: \"", cluster,
                                    "\" names no device, so nothing takes "
                                    "time; name one, as in \"",
                                    cluster, ":h100\""));
    }
    if (!seen.insert(cluster).second)
      refuse(clusters, absl::StrCat("clusters: \"", cluster, "\" occurs twice"));
  }
  workload.tolerances = tolerances_of(node["tolerances"]);
  workload.tolerances.insert(common.begin(), common.end());
  return workload;
}

Workloads workloads_of(const YAML::Node& root, const std::string& path) {
  check_keys(root, "the file", {"baselines", "tolerances", "workloads"});
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::string baselines =
      root["baselines"].IsDefined() ? text_of(root["baselines"], "baselines") : "perf";
  Workloads workloads{.path = path, .baselines = (folder / baselines).string(), .list = {}};
  const Tolerances common = tolerances_of(root["tolerances"]);
  const YAML::Node list = root["workloads"];
  if (!list.IsDefined() || !list.IsSequence() || list.size() == 0) {
    refuse(root, "workloads: expected a list with at least one");
  }
  std::set<std::string> names;
  for (const YAML::Node& each : list) {
    workloads.list.push_back(workload_of(each, common));
    if (!names.insert(workloads.list.back().name).second) {
      refuse(each, absl::StrCat("two workloads are called \"", workloads.list.back().name, "\""));
    }
  }
  return workloads;
}

absl::Status error_at(const std::string& path, const YAML::Mark& mark, absl::string_view message) {
  if (mark.is_null()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", message));
  return absl::InvalidArgumentError(absl::StrCat(path, ":", mark.line + 1, ": ", message));
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
  return absl::InvalidArgumentError(absl::StrCat("expected a share, as in \"1 %\", or ",
                                                 amounts_text(unit_of(metric)), ", got \"", text,
                                                 "\""));
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
    return absl::InvalidArgumentError(
        absl::StrCat("a quote ", std::string(1, quote), " has no end"));
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
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      refuse(documents[1],
             "the file has a second document, and one is read: is there a line --- "
             "too many?");
    }
    return workloads_of(documents.empty() ? YAML::Node() : documents[0], path);
  } catch (const Problem& problem) {
    return error_at(path, problem.mark, problem.message);
  } catch (const YAML::Exception& error) {
    return error_at(path, error.mark, error.msg);
  }
}

}  // namespace accelerate::launcher::perf
