#include "accelerate/values/versions.h"

#include <algorithm>
#include <charconv>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/version.h>

#include "absl/strings/ascii.h"
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

// Takes what it recognises from the front of a text.
class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest) {}

  bool at_end() const { return rest_.empty(); }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  bool take_separator() { return take(".") || take("-") || take("_"); }
  std::optional<int64_t> take_number() {
    int64_t number = 0;
    if (rest_.starts_with('-')) return std::nullopt;
    const auto [stop, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc()) return std::nullopt;
    rest_.remove_prefix(static_cast<size_t>(stop - rest_.data()));
    return number;
  }
  std::string_view take_word() {
    const auto end = std::ranges::find_if_not(rest_, absl::ascii_isalnum);
    const std::string_view word = rest_.substr(0, static_cast<size_t>(end - rest_.begin()));
    rest_.remove_prefix(word.size());
    return word;
  }

  // One of the words with an optional number (0), and optional separators around the word: ".rc-1".
  // Takes all of it or nothing.
  std::optional<int64_t> take_suffix(std::initializer_list<std::string_view> words) {
    Reader ahead = *this;
    ahead.take_separator();
    bool found = false;
    for (std::string_view word : words) found = found || ahead.take(word);
    if (!found) return std::nullopt;
    *this = ahead;
    ahead.take_separator();
    const std::optional<int64_t> number = ahead.take_number();
    if (number) *this = ahead;
    return number.value_or(0);
  }

 private:
  std::string_view rest_;
};

bool read_release(Reader& reader, Version& version) {
  std::optional<int64_t> number = reader.take_number();
  if (number && reader.take("!")) {
    version.epoch = *number;
    number = reader.take_number();
  }
  if (!number) return false;
  version.release.push_back(*number);
  while (true) {
    Reader ahead = reader;
    if (!ahead.take(".") || !(number = ahead.take_number())) break;
    version.release.push_back(*number);
    reader = ahead;
  }
  while (!version.release.empty() && version.release.back() == 0) version.release.pop_back();
  return true;
}

void read_suffixes(Reader& reader, Version& version) {
  bool is_pre = false;
  // Longer words first: "a" begins "alpha".
  const std::initializer_list<std::string_view> kinds[] = {
      {"alpha", "a"}, {"beta", "b"}, {"preview", "pre", "rc", "c"}};
  for (int64_t kind = 0; kind < 3 && !is_pre; ++kind) {
    if (const auto number = reader.take_suffix(kinds[kind])) {
      version.pre = {kind, *number};
      is_pre = true;
    }
  }
  Reader ahead = reader;
  if (const auto number = reader.take_suffix({"post", "rev", "r"})) {
    version.post = *number;
  } else if (ahead.take("-")) {
    if (const auto implicit = ahead.take_number()) {
      version.post = *implicit;
      reader = ahead;
    }
  }
  if (const auto number = reader.take_suffix({"dev"})) {
    version.dev = *number;
    // Before the release's own pre-releases.
    if (!is_pre && version.post == kBeforeAll) version.pre = {kBeforeAll, 0};
  }
}

bool read_local(Reader& reader, Version& version) {
  if (!reader.take("+")) return true;
  do {
    const std::string_view word = reader.take_word();
    if (word.empty()) return false;
    Reader number_reader(word);
    const std::optional<int64_t> number = number_reader.take_number();
    if (number && number_reader.at_end()) {
      version.local.emplace_back(1 + *number, "");
    } else {
      version.local.emplace_back(0, word);
    }
  } while (reader.take_separator());
  return true;
}

Version parse_version(std::string_view text, const char* hint = "") {
  std::string plain = absl::AsciiStrToLower(std::string(text));
  absl::StripAsciiWhitespace(&plain);
  Reader reader(plain);
  reader.take("v");
  Version version;
  bool valid = read_release(reader, version);
  if (valid) {
    read_suffixes(reader, version);
    valid = read_local(reader, version) && reader.at_end();
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
