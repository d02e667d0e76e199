#include "launch/plan/hostfile.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace accelerate::launch::plan {
namespace {

constexpr int kMaxSlots = 1024;

const std::vector<int>* slots_of(const Hosts& hosts, absl::string_view name) {
  for (const auto& [host, slots] : hosts) {
    if (host == name) return &slots;
  }
  return nullptr;
}

// The part of the hosts that a filter names; no slots: all of the machine.
absl::StatusOr<Hosts> named(const Hosts& hosts, absl::string_view filter) {
  Hosts result;
  for (absl::string_view part : absl::StrSplit(filter, '@')) {
    const std::vector<absl::string_view> pair = absl::StrSplit(part, absl::MaxSplits(':', 1));
    const std::vector<int>* all = slots_of(hosts, pair[0]);
    if (all == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("filter \"", filter, "\": the hostfile has no machine \"", pair[0], "\""));
    }
    std::vector<int> slots = *all;
    if (pair.size() == 2) {
      slots.clear();
      for (absl::string_view word : absl::StrSplit(pair[1], ',')) {
        int slot = 0;
        if (!absl::SimpleAtoi(word, &slot) ||
            std::find(all->begin(), all->end(), slot) == all->end()) {
          return absl::InvalidArgumentError(
              absl::StrCat("filter \"", filter, "\": ", pair[0], " has no slot \"", word, "\""));
        }
        slots.push_back(slot);
      }
    }
    result.emplace_back(std::string(pair[0]), std::move(slots));
  }
  return result;
}

}  // namespace

absl::StatusOr<Hosts> parse_hostfile(absl::string_view text) {
  Hosts hosts;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    absl::string_view count = words.back();
    int slots = 0;
    if (words.size() != 2 || !absl::ConsumePrefix(&count, "slots=") ||
        !absl::SimpleAtoi(count, &slots) || slots < 1 || slots > kMaxSlots) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ", \"", line, "\", is not MACHINE slots=NUMBER"));
    }
    if (slots_of(hosts, words[0]) != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", words[0], " occurs twice"));
    }
    hosts.emplace_back(std::string(words[0]), std::vector<int>());
    for (int slot = 0; slot < slots; ++slot) hosts.back().second.push_back(slot);
  }
  if (hosts.empty()) return absl::InvalidArgumentError("no machine is in it");
  return hosts;
}

absl::StatusOr<Hosts> filter_hosts(const Hosts& hosts, absl::string_view include,
                                   absl::string_view exclude) {
  if (include.empty() && exclude.empty()) return hosts;
  if (!include.empty() && !exclude.empty()) {
    return absl::InvalidArgumentError("an inclusion and an exclusion filter exclude each other");
  }
  if (!include.empty()) return named(hosts, include);
  const absl::StatusOr<Hosts> gone = named(hosts, exclude);
  if (!gone.ok()) return gone.status();
  Hosts rest;
  for (auto [host, slots] : hosts) {
    if (const std::vector<int>* out = slots_of(*gone, host)) {
      std::erase_if(
          slots, [&](int slot) { return std::find(out->begin(), out->end(), slot) != out->end(); });
    }
    if (!slots.empty()) rest.emplace_back(host, std::move(slots));
  }
  if (rest.empty()) return absl::InvalidArgumentError("the exclusion filter leaves no machine");
  return rest;
}

}  // namespace accelerate::launch::plan
