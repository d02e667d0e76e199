#include "accelerate/platform/slurm.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace accelerate {
namespace {

// Step numbers from here on do not belong to srun: the batch script, the interactive shell, ...
constexpr uint32_t kFirstSpecialStep = 0xfffffff0;
// Above what Slurm itself allows.
constexpr size_t kMaxEntries = 1 << 20;

absl::Status malformed(absl::string_view what, absl::string_view list) {
  return absl::InvalidArgumentError(absl::StrCat("\"", list, "\" is not a list of ", what));
}

// Splits as Slurm does, at commas and blanks outside of brackets. Nothing where the brackets do not
// match or no host stands between two commas.
std::optional<std::vector<absl::string_view>> split_list(absl::string_view list) {
  std::vector<absl::string_view> parts;
  size_t begin = 0;
  bool inside = false;
  bool has_host = false;  // since the last comma
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (!inside && (c == ',' || absl::ascii_isspace(c))) {
      if (i > begin) parts.push_back(list.substr(begin, i - begin));
      has_host = has_host || i > begin;
      begin = i + 1;
      if (c != ',') continue;
      if (!has_host) return std::nullopt;
      has_host = false;
    } else if (c == '[' || c == ']') {
      if (inside == (c == '[')) return std::nullopt;
      inside = !inside;
    }
  }
  if (inside) return std::nullopt;
  return parts;
}

// Appends what "03-05" or "9" stands for: each number as wide as the range's beginning is.
bool append_range(absl::string_view range, std::vector<std::string>* numbers) {
  range = absl::StripAsciiWhitespace(range);
  const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
  auto is_number = [](absl::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  };
  if (ends.size() > 2 || !std::all_of(ends.begin(), ends.end(), is_number)) return false;
  uint64_t first = 0;
  uint64_t last = 0;
  if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last))
    return false;
  if (last < first || last - first >= kMaxEntries - numbers->size()) return false;
  const int width = static_cast<int>(ends.front().size());
  for (uint64_t number = first; number - first <= last - first; ++number) {
    numbers->push_back(absl::StrFormat("%0*d", width, number));
  }
  return true;
}

bool is_host(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

// Appends the hosts of "rack[1-2]n[3,5-6]", the leftmost bracket slowest.
bool append_hosts(absl::string_view prefix, absl::string_view rest,
                  std::vector<std::string>* hosts) {
  const size_t open = rest.find('[');
  if (open == absl::string_view::npos) {
    const std::string host = absl::StrCat(prefix, rest);
    if (!is_host(host) || hosts->size() >= kMaxEntries) return false;
    hosts->push_back(host);
    return true;
  }
  const size_t close = rest.find(']', open);
  std::vector<std::string> numbers;
  for (absl::string_view range : absl::StrSplit(rest.substr(open + 1, close - open - 1), ',')) {
    if (!append_range(range, &numbers)) return false;
  }
  for (const std::string& number : numbers) {
    if (!append_hosts(absl::StrCat(prefix, rest.substr(0, open), number), rest.substr(close + 1),
                      hosts)) {
      return false;
    }
  }
  return true;
}

std::optional<uint32_t> read_number(const Environment& environment, const char* name) {
  uint32_t value = 0;
  if (!absl::SimpleAtoi(environment.get_or(name, ""), &value)) return std::nullopt;
  return value;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> expand_slurm_hosts(absl::string_view list) {
  const auto parts = split_list(list);
  if (!parts) return malformed("hosts", list);
  std::vector<std::string> hosts;
  for (absl::string_view part : *parts) {
    if (!append_hosts("", part, &hosts)) return malformed("hosts", list);
  }
  return hosts;
}

absl::StatusOr<std::vector<int>> expand_slurm_counts(absl::string_view list) {
  std::vector<int> counts;
  for (absl::string_view part : absl::StrSplit(list, ',')) {
    part = absl::StripAsciiWhitespace(part);
    const size_t open = part.find("(x");
    int count = 0;
    int times = 1;
    const bool repeated = open != absl::string_view::npos;
    if (!absl::SimpleAtoi(part.substr(0, open), &count) || count < 0 ||
        (repeated && (!absl::EndsWith(part, ")") ||
                      !absl::SimpleAtoi(part.substr(open + 2, part.size() - open - 3), &times)))) {
      return malformed("task counts", list);
    }
    if (times < 1 || counts.size() + static_cast<size_t>(times) > kMaxEntries) {
      return malformed("task counts", list);
    }
    counts.insert(counts.end(), static_cast<size_t>(times), count);
  }
  return counts;
}

SlurmRole slurm_role(const Environment& environment) {
  const std::optional<uint32_t> task = read_number(environment, "SLURM_PROCID");
  const std::initializer_list<const char*> names = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_NTASKS"};
  const bool in_job = std::ranges::any_of(
      names, [&](const char* name) { return !environment.get_or(name, "").empty(); });
  if (!task) return in_job ? SlurmRole::kShell : SlurmRole::kNone;
  if (const auto step = read_number(environment, "SLURM_STEP_ID")) {
    return *step < kFirstSpecialStep ? SlurmRole::kTask : SlurmRole::kShell;
  }
  // Without a step's number only the first task and the script look alike.
  const bool in_step = *task > 0 || read_number(environment, "SLURM_STEP_NUM_TASKS").has_value();
  return in_step ? SlurmRole::kTask : SlurmRole::kShell;
}

absl::StatusOr<std::optional<std::string>> slurm_first_host(const Environment& environment) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const std::string list = environment.get_or(name, "");
    if (list.empty()) continue;
    absl::StatusOr<std::vector<std::string>> hosts = expand_slurm_hosts(list);
    if (hosts.ok()) return hosts->front();
    return absl::InvalidArgumentError(
        absl::StrCat("variable ", name, ": ", hosts.status().message()));
  }
  return std::nullopt;
}

std::optional<int> slurm_port(const Environment& environment) {
  const std::optional<uint32_t> job = read_number(environment, "SLURM_JOB_ID");
  if (!job) return std::nullopt;
  const uint64_t step = read_number(environment, "SLURM_STEP_ID").value_or(0);
  return static_cast<int>(20000 + (*job + step * 97) % 10000);
}

}  // namespace accelerate
