#include "integration_tests/golden/replay.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/compare.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr int kSuccess = 0;
constexpr int kSomeFailed = 1;
constexpr int kCannotRun = 2;

absl::Status check_case(const json& one, size_t index, std::set<std::string>& ids) {
  const std::string place = absl::StrCat("case ", index, " ");
  if (!one.is_object()) return absl::InvalidArgumentError(place + "is not an object");
  for (const char* key : {"id", "in", "out"}) {
    if (!one.contains(key)) return absl::InvalidArgumentError(absl::StrCat(place, "has no ", key));
  }
  if (!one["id"].is_string())
    return absl::InvalidArgumentError(place + "has an id that is not a string");
  const auto id = one["id"].get<std::string>();
  if (!one["in"].is_object())
    return absl::InvalidArgumentError(id + " has an in that is not an object");
  if (!ids.insert(id).second) return absl::InvalidArgumentError("two cases have the id " + id);
  return absl::OkStatus();
}

// Parsed objects have sorted keys. If the file's order differs, the object gets a list of its keys.
void note_order(const nlohmann::ordered_json& ordered, json& value) {
  if (ordered.is_array()) {
    for (size_t i = 0; i < ordered.size(); ++i) note_order(ordered[i], value[i]);
  }
  if (!ordered.is_object()) return;
  std::vector<std::string> keys;
  for (const auto& [key, entry] : ordered.items()) {
    keys.push_back(key);
    note_order(entry, value[key]);
  }
  if (!std::is_sorted(keys.begin(), keys.end())) value[kOrder] = keys;
}

void note_order(const Family& family, const std::string& text, json& cases) {
  if (family.ordered_fields.empty()) return;
  const auto ordered = nlohmann::ordered_json::parse(text).at("cases");
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& in = ordered[i].at("in");
    for (const std::string& name : family.ordered_fields) {
      if (in.contains(name)) note_order(in[name], cases[i]["in"][name]);
    }
  }
}

}  // namespace

Totals& Totals::operator+=(const Totals& other) {
  passed += other.passed;
  failed += other.failed;
  by_decision += other.by_decision;
  missing += other.missing;
  return *this;
}

std::string to_string(const Totals& totals) {
  std::string text = absl::StrCat(totals.passed, " passed, ", totals.failed, " failed");
  if (totals.by_decision > 0)
    absl::StrAppend(&text, ", ", totals.by_decision, " differ by decision");
  if (totals.missing > 0) absl::StrAppend(&text, ", ", totals.missing, " missing");
  return text;
}

absl::StatusOr<GoldenFile> parse_file(const std::string& path, const std::string& text) {
  json content;
  try {
    content = json::parse(text);
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no JSON: ", error.what()));
  }
  if (!content.is_object() || !content.contains("family") || !content["family"].is_string() ||
      !content.contains("cases") || !content["cases"].is_array()) {
    return absl::InvalidArgumentError(
        path + ": no golden file: it needs a \"family\" (text) and \"cases\" (a list)");
  }
  const auto family = content["family"].get<std::string>();
  const Family* known = find_family(family);
  if (known == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": unknown family \"", family,
                                                   "\"; known are ",
                                                   absl::StrJoin(family_names(), ", ")));
  }
  std::set<std::string> ids;
  for (size_t i = 0; i < content["cases"].size(); ++i) {
    absl::Status status = check_case(content["cases"][i], i, ids);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
    }
  }
  note_order(*known, text, content["cases"]);
  return GoldenFile{path, family, std::move(content["cases"])};
}

absl::StatusOr<GoldenFile> load_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  // A folder opens, but cannot be read; nor is an empty file golden.
  if (!stream.is_open() || !(text << stream.rdbuf())) {
    return absl::NotFoundError(path + ": cannot be read, or is empty");
  }
  return parse_file(path, text.str());
}

void Replayer::print_failure(const std::string& id, const std::string& path,
                             const std::string& expected, const std::string& got,
                             const std::vector<std::string>& decisions) {
  if (++failures_ > kMaxPrinted) return;
  out_ << id;
  if (!path.empty()) out_ << " at " << path;
  if (!decisions.empty()) out_ << " (after decisions: " << absl::StrJoin(decisions, ", ") << ")";
  out_ << "\n  expected: " << expected << "\n  got:      " << got << "\n";
}

Totals Replayer::replay(const GoldenFile& file) {
  const Family& family = *find_family(file.family);
  Totals totals;
  for (const json& one : file.cases) {
    const auto id = one["id"].get<std::string>();
    json got;
    try {
      got = family.run_case(one["in"]);
    } catch (const Missing& feature) {
      ++missing_[feature.what()];
      ++totals.missing;
      continue;
    } catch (...) {
      got = current_error();
    }
    Expectation expectation;
    try {
      expectation = expect(file.family, one["in"], one["out"], decisions_);
    } catch (const std::exception& error) {
      // The case's own trouble, if it has one, says more.
      const std::string trouble = is_error(got) ? got["error"].value("message", "") : error.what();
      print_failure(id, "", "a case that decisions can judge", "error: " + trouble, {});
      ++totals.failed;
      continue;
    }
    if (auto difference = first_difference(expectation.out, got, family.tolerance(one["in"]))) {
      print_failure(id, difference->path, difference->expected, difference->got,
                    expectation.decisions);
      ++totals.failed;
    } else if (expectation.decisions.empty()) {
      ++totals.passed;
    } else {
      ++totals.by_decision;
    }
  }
  return totals;
}

int run(const std::vector<std::string>& paths, const std::string& base, std::ostream& out,
        std::ostream& err) {
  if (paths.empty()) {
    err << "usage: replay FILE.json...\n";
    return kCannotRun;
  }
  std::vector<GoldenFile> files;
  for (const std::string& path : paths) {
    const bool relative = !path.empty() && path.front() != '/';
    auto file = load_file(relative && !base.empty() ? base + "/" + path : path);
    if (!file.ok()) {
      err << "replay: " << file.status().message() << "\n";
      return kCannotRun;
    }
    files.push_back(*std::move(file));
  }
  Replayer replayer(out);
  Totals total;
  std::string lines;
  for (const GoldenFile& file : files) {
    const Totals totals = replayer.replay(file);
    total += totals;
    if (files.size() > 1) absl::StrAppend(&lines, file.path, ": ", to_string(totals), "\n");
  }
  if (replayer.not_printed() > 0) {
    out << "and " << replayer.not_printed() << " more failures that are not printed\n";
  }
  for (const auto& [feature, cases] : replayer.missing()) {
    out << "missing: " << feature << ": " << cases << (cases == 1 ? " case\n" : " cases\n");
  }
  out << lines << to_string(total) << "\n";
  return total.failed > 0 ? kSomeFailed : kSuccess;
}

}  // namespace accelerate::golden
