#include "accelerate/values/versions.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/version.h>

#include "absl/base/no_destructor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/version.h"

namespace accelerate {
namespace {

constexpr int64_t kBeforeAll = -1;
constexpr int64_t kAfterAll = std::numeric_limits<int64_t>::max();

// In the order in which they are compared.
struct Version {
  int64_t epoch = 0;
  std::vector<int64_t> release;  // without zeros at its end
  // Which kind of pre-release (a, b, rc are 0, 1, 2) and its number.
  std::pair<int64_t, int64_t> pre{kAfterAll, 0};
  int64_t post = kBeforeAll;
  int64_t dev = kAfterAll;
  // Its parts, words before numbers: (0, word) or (1 + number, "").
  std::vector<std::pair<int64_t, std::string>> local;

  auto operator<=>(const Version&) const = default;
};

// A version in small letters, without blanks around it; parse_version names the groups.
const std::regex& spelling() {
  static const absl::NoDestructor<std::regex> kSpelling(
      R"(v?(?:(\d+)!)?(\d+(?:\.\d+)*))"
      R"((?:[-_.]?(alpha|a|beta|b|preview|pre|rc|c)(?:[-_.]?(\d+))?)?)"
      R"((?:-(\d+)|[-_.]?(post|rev|r)(?:[-_.]?(\d+))?)?)"
      R"((?:[-_.]?(dev)(?:[-_.]?(\d+))?)?)"
      R"((?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?)");
  return *kSpelling;
}

Version parse_version(std::string_view text, const char* hint = "") {
  enum { kEpoch = 1, kRelease, kPre, kPreNumber, kJustPost, kPost, kPostNumber, kDev, kDevNumber };
  constexpr size_t kLocal = kDevNumber + 1;
  std::string plain = absl::AsciiStrToLower(std::string(text));
  absl::StripAsciiWhitespace(&plain);
  // std::regex recurses once per character.
  constexpr size_t kLongest = 200;
  if (plain.size() > kLongest) plain.clear();
  std::smatch parts;
  bool valid = std::regex_match(plain, parts, spelling());
  const auto number_of = [&valid](absl::string_view digits) {
    int64_t number = 0;
    valid = valid && (digits.empty() || absl::SimpleAtoi(digits, &number));
    return number;
  };
  Version version;
  version.epoch = number_of(parts.str(kEpoch));
  for (const absl::string_view digits : absl::StrSplit(parts.str(kRelease), '.')) {
    version.release.push_back(number_of(digits));
  }
  while (!version.release.empty() && version.release.back() == 0) version.release.pop_back();
  if (parts[kPre].matched) {
    const char kind = *parts[kPre].first;
    version.pre = {kind == 'a' ? 0 : kind == 'b' ? 1 : 2, number_of(parts.str(kPreNumber))};
  }
  if (parts[kPost].matched) version.post = number_of(parts.str(kPostNumber));
  if (parts[kJustPost].matched) version.post = number_of(parts.str(kJustPost));
  if (parts[kDev].matched) {
    version.dev = number_of(parts.str(kDevNumber));
    // Before the release's own pre-releases.
    if (!parts[kPre].matched && version.post == kBeforeAll) version.pre = {kBeforeAll, 0};
  }
  const auto separators = absl::ByAnyChar("-_.");
  for (const absl::string_view word :
       absl::StrSplit(parts.str(kLocal), separators, absl::SkipEmpty())) {
    int64_t number = 0;
    const bool is_number = absl::SimpleAtoi(word, &number);
    version.local.emplace_back(is_number ? 1 + number : 0, is_number ? absl::string_view() : word);
  }
  TORCH_CHECK_VALUE(valid, "\"", text, "\" is not a version", hint);
  return version;
}

}  // namespace

std::optional<std::string_view> library_version(std::string_view library) {
  if (library == "accelerate") return kAccelerateVersion;
  if (library == "torch") return TORCH_VERSION;
  return std::nullopt;
}

bool compare_versions(std::string_view library_or_version, std::string_view op,
                      std::string_view requirement_version) {
  TORCH_CHECK_VALUE(op == ">" || op == ">=" || op == "==" || op == "!=" || op == "<=" || op == "<",
                    "`operation` must be one of >, >=, ==, !=, <=, <; got \"", op, "\"");
  const std::string_view version = library_version(library_or_version).value_or(library_or_version);
  const auto order =
      parse_version(version, "; the libraries whose version is known are accelerate and torch") <=>
      parse_version(requirement_version);
  if (op == ">") return order > 0;
  if (op == ">=") return order >= 0;
  if (op == "==") return order == 0;
  if (op == "!=") return order != 0;
  if (op == "<=") return order <= 0;
  return order < 0;
}

bool is_torch_version(std::string_view operation, std::string_view version) {
  const std::string release = std::to_string(TORCH_VERSION_MAJOR) + "." +
                              std::to_string(TORCH_VERSION_MINOR) + "." +
                              std::to_string(TORCH_VERSION_PATCH);
  return compare_versions(release, operation, version);
}

}  // namespace accelerate
