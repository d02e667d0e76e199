#include "simulator/core/run_log.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace accelerate::simulator {
namespace {

using Kind = RunLog::Kind;

constexpr absl::string_view kFirstLine = "accelerate run log 1";
constexpr absl::string_view kNamesWork = "work";
// The last line, with the number of entries.
constexpr absl::string_view kEnd = "end ";
// Names of a header are several words.
constexpr absl::string_view kBehindName = ": ";
// By Kind: the first letter of an entry's line.
constexpr absl::string_view kLetters = "rbfsvo";
// A digest follows so many entries.
constexpr size_t kDigestEvery = 1000;

constexpr uint64_t kHashStart = 14695981039346656037u;

// FNV-1a.
uint64_t hashed(uint64_t hash, absl::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

std::string line_of(const RunLog::Entry& entry) {
  return absl::StrCat(kLetters.substr(static_cast<size_t>(entry.kind), 1), " ", entry.rank, " ",
                      entry.word, " ", entry.options, " ", entry.value, " ", entry.at_ns, "\n");
}

bool read_entry(absl::string_view line, RunLog::Entry& entry) {
  const size_t letter = kLetters.find(line.front());
  if (letter == absl::string_view::npos) return false;
  entry.kind = static_cast<Kind>(letter);
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  return parts.size() == 6 && absl::SimpleAtoi(parts[1], &entry.rank) &&
         absl::SimpleAtoi(parts[2], &entry.word) && absl::SimpleAtoi(parts[3], &entry.options) &&
         absl::SimpleAtoi(parts[4], &entry.value) && absl::SimpleAtoi(parts[5], &entry.at_ns);
}

std::string header_lines(const RunLog& log) {
  std::string text = absl::StrCat(kFirstLine, "\n");
  for (const auto& [name, value] : log.header()) {
    absl::StrAppend(&text, "h ", name, kBehindName, absl::CEscape(value), "\n");
  }
  if (log.names_work()) absl::StrAppend(&text, "h ", kNamesWork, kBehindName, "named\n");
  return text;
}

}  // namespace

std::string RunLog::header(absl::string_view name) const {
  for (const auto& [known, value] : header_) {
    if (known == name) return value;
  }
  return "";
}

std::string RunLog::difference_of_header(const Header& other) const {
  for (const auto& [name, value] : other) {
    const std::string its = header(name);
    if (its == value) continue;
    return absl::StrCat("the log is of another ", name, ": \"", its, "\", not \"", value, "\"");
  }
  return "";
}

std::string RunLog::describe(const Entry& entry) const {
  const std::string& place = words_[entry.word];
  const std::string who = absl::StrCat("rank ", entry.rank, place.empty() ? "" : " at ", place);
  switch (entry.kind) {
    case Kind::kRank: return absl::StrCat(who, ", drawn of ", entry.options, " ready ranks");
    case Kind::kBackground:
      return absl::StrCat(who, ", which drew ", entry.value, " of ", entry.options,
                          " for its background work");
    case Kind::kFault: return absl::StrCat("the fault \"", place, "\" of rank ", entry.rank);
    case Kind::kSite: return who;
    case Kind::kValues:
      return absl::StrCat("values of ", who, " with the hash ", absl::Hex(entry.value));
    case Kind::kWork:
      return absl::StrCat(entry.options, " operators, allocations and releases of ", who,
                          " with the hash ", absl::Hex(entry.value));
  }
  return who;
}

uint32_t RunLog::intern(absl::string_view text) {
  const auto [known, is_new] =
      numbers_.emplace(std::string(text), static_cast<uint32_t>(words_.size()));
  if (is_new) words_.emplace_back(text);
  return known->second;
}

// A word comes before the first entry that has it.
std::string RunLog::lines_from(size_t first_word, size_t first_entry) const {
  std::string text;
  for (size_t i = first_word; i < words_.size(); ++i) {
    absl::StrAppend(&text, "w ", absl::CEscape(words_[i]), "\n");
  }
  for (size_t i = first_entry; i < entries_.size(); ++i)
    absl::StrAppend(&text, line_of(entries_[i]));
  return text;
}

std::string RunLog::to_string() const {
  return absl::StrCat(header_lines(*this), lines_from(0, 0),
                      is_whole_ ? absl::StrCat(kEnd, entries_.size(), "\n") : "");
}

absl::StatusOr<RunLog> RunLog::parse(absl::string_view text) {
  RunLog log;
  log.is_whole_ = false;
  int number = 0;
  uint64_t digest = kHashStart;
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", what));
  };
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (number == 1) {
      if (line == kFirstLine) continue;
      return wrong(absl::StartsWith(line, kFirstLine.substr(0, kFirstLine.size() - 1))
                       ? absl::StrCat("another version of logs, not \"", kFirstLine, "\"")
                       : std::string("this is not the log of a run"));
    }
    if (line.empty()) continue;
    if (absl::StartsWith(line, kEnd)) {
      size_t entries = 0;
      log.is_whole_ =
          absl::SimpleAtoi(line.substr(kEnd.size()), &entries) && entries == log.entries_.size();
      if (!log.is_whole_) return wrong("entries are missing before the end");
    } else if (absl::StartsWith(line, "h ")) {
      const std::pair<std::string, std::string> named =
          absl::StrSplit(line.substr(2), absl::MaxSplits(kBehindName, 1));
      std::string value;
      if (!absl::CUnescape(named.second, &value)) return wrong("a value that cannot be read");
      if (named.first == kNamesWork) {
        log.names_work_ = true;
      } else {
        log.header_.emplace_back(named.first, value);
      }
    } else if (absl::StartsWith(line, "w ")) {
      std::string word;
      if (!absl::CUnescape(line.substr(2), &word)) return wrong("words that cannot be read");
      log.words_.push_back(word);
      log.numbers_.emplace(std::move(word), static_cast<uint32_t>(log.words_.size() - 1));
    } else if (absl::StartsWith(line, "d ")) {
      if (line.substr(2) != absl::StrCat(absl::Hex(digest))) {
        return wrong("the digest of what comes before is another: the log was changed");
      }
    } else {
      Entry entry;
      if (!read_entry(line, entry)) return wrong("this is not an entry of a log");
      if (entry.word >= log.words_.size()) return wrong("the words of this entry are missing");
      digest = hashed(digest, absl::StrCat(line, "\n"));
      log.entries_.push_back(entry);
    }
  }
  return log;
}

absl::StatusOr<RunLog> RunLog::read(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  absl::StatusOr<RunLog> log = parse(text);
  if (log.ok()) return log;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", log.status().message()));
}

RunWitness::RunWitness(std::vector<int> ranks, RunLog& log, const RunLog* expected)
    : ranks_(std::move(ranks)), log_(log), expected_(expected), digest_(kHashStart) {
  const int most = ranks_.empty() ? -1 : *std::ranges::max_element(ranks_);
  const uint32_t nowhere = log_.intern("");
  places_.assign(most + 1, {.word = nowhere, .hash = kHashStart});
}

absl::Status RunWitness::write_to(const std::string& path) {
  file_.open(path, std::ios::trunc);
  file_ << header_lines(log_) << std::flush;
  if (!file_) return absl::PermissionDeniedError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

// With a digest of all entries so far behind each thousand; the rest is written by end().
void RunWitness::write_new() {
  file_ << log_.lines_from(written_words_, written_entries_);
  for (size_t i = written_entries_; i < log_.entries_.size(); ++i) {
    digest_ = hashed(digest_, line_of(log_.entries_[i]));
  }
  // So that what is in the file can be read if the process dies.
  file_ << "d " << absl::StrCat(absl::Hex(digest_)) << "\n" << std::flush;
  written_words_ = log_.words_.size();
  written_entries_ = log_.entries_.size();
}

absl::Status RunWitness::end() {
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    flush_work(static_cast<int>(rank), places_[rank].at_ns);
  }
  if (const RunLog::Entry* left = next_expected()) {
    difference_ = absl::StrCat("entry ", log_.entries_.size() + 1, ": the log has ",
                               expected_->describe(*left), ", and this run has ended");
  }
  if (!file_.is_open()) return absl::OkStatus();
  write_new();
  file_ << kEnd << log_.entries_.size() << "\n" << std::flush;
  return file_ ? absl::OkStatus() : absl::DataLossError("the log could not be written");
}

// Null where there is none, and behind a difference.
const RunLog::Entry* RunWitness::next_expected() const {
  const size_t next = log_.entries_.size();
  const bool is_known =
      expected_ != nullptr && difference_.empty() && next < expected_->entries().size();
  return is_known ? &expected_->entries()[next] : nullptr;
}

void RunWitness::add(RunLog::Entry entry) {
  const RunLog::Entry* const wanted = next_expected();
  log_.append(entry);
  if (file_.is_open() && log_.entries_.size() % kDigestEvery == 0) write_new();
  if (expected_ == nullptr || !difference_.empty()) return;
  const std::string number = absl::StrCat("entry ", log_.entries_.size(), ": ");
  const std::string here = log_.describe(entry);
  if (wanted == nullptr) {
    if (!expected_->is_whole()) return;
    difference_ = absl::StrCat(number, "the log has ended, and this run has ", here);
    return;
  }
  RunLog::Entry its = *wanted;
  const bool same_word = expected_->word(its.word) == log_.word(entry.word);
  its.word = entry.word;
  if (same_word && its == entry) return;
  std::string there = expected_->describe(*wanted);
  if (there == here) {
    there += absl::StrCat(" at ", wanted->at_ns, " ns");
    difference_ = absl::StrCat(number, "the log has ", there, ", this run at ", entry.at_ns, " ns");
    return;
  }
  difference_ = absl::StrCat(number, "the log has ", there, ", this run has ", here);
}

void RunWitness::flush_work(int rank, int64_t now_ns) {
  Place& place = places_[rank];
  if (place.num_work == 0) return;
  const RunLog::Entry entry{.kind = Kind::kWork,
                            .rank = rank,
                            .word = place.word,
                            .options = std::exchange(place.num_work, 0),
                            .value = static_cast<int64_t>(std::exchange(place.hash, kHashStart)),
                            .at_ns = now_ns};
  add(entry);
}

size_t RunWitness::choose_task(absl::Span<const int> ready, size_t drawn, int64_t now_ns) {
  if (const RunLog::Entry* wanted = next_expected();
      wanted != nullptr && wanted->kind == Kind::kRank) {
    const auto found =
        std::ranges::find_if(ready, [&](int task) { return ranks_[task] == wanted->rank; });
    if (found != ready.end()) drawn = static_cast<size_t>(found - ready.begin());
  }
  const int rank = ranks_[ready[drawn]];
  add({.kind = Kind::kRank,
       .rank = rank,
       .word = places_[rank].word,
       .options = static_cast<int64_t>(ready.size()),
       .at_ns = now_ns});
  return drawn;
}

int64_t RunWitness::choose(int rank, int64_t options, int64_t drawn, int64_t now_ns) {
  flush_work(rank, now_ns);
  const RunLog::Entry* wanted = next_expected();
  const bool is_its = wanted != nullptr && wanted->kind == Kind::kBackground &&
                      wanted->rank == rank && wanted->value >= 0 && wanted->value < options;
  if (is_its) drawn = wanted->value;
  add({.kind = Kind::kBackground,
       .rank = rank,
       .word = places_[rank].word,
       .options = options,
       .value = drawn,
       .at_ns = now_ns});
  return drawn;
}

void RunWitness::site(int rank, absl::string_view words, int64_t now_ns, bool is_work) {
  Place& place = places_[rank];
  if (is_work && !log_.names_work()) {
    ++place.num_work;
    place.hash = hashed(place.hash, words);
    place.at_ns = now_ns;
    return;
  }
  note(Kind::kSite, rank, words, 0, now_ns);
}

void RunWitness::note(Kind kind, int rank, absl::string_view words, int64_t value, int64_t now_ns) {
  flush_work(rank, now_ns);
  const uint32_t word = log_.intern(words);
  if (kind == Kind::kSite) places_[rank].word = word;
  add({.kind = kind, .rank = rank, .word = word, .value = value, .at_ns = now_ns});
}

}  // namespace accelerate::simulator
