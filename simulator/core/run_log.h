/// What a run drew and did, in order: to repeat the run, and to find the first difference of two.
///
/// A RunLog has a header (what the run was), and an entry for each choice among several ready
/// ranks, each choice of background work, each fault, and what ranks came to. It is a text of
/// lines: README.md of simulator/ has the format. A RunWitness is attached to a run. It writes
/// entries, or compares the run with a log and makes the choices of the log, or both.
///
/// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::simulator {

class RunLog {
 public:
  enum class Kind : uint8_t {
    kRank,        ///< the rank goes on, drawn among `options` ready ones
    kBackground,  ///< `value` is drawn below `options`
    kFault,       ///< a rule fires
    kSite,        ///< the rank comes to something
    kValues,      ///< `value` is a hash of what it contributes to a call
    kWork,        ///< `value` is a hash of its operators and allocations since its last entry
  };

  struct Entry {
    Kind kind = Kind::kSite;
    int rank = 0;
    uint32_t word = 0;  ///< of words(): where the rank is
    int64_t options = 0;
    int64_t value = 0;
    int64_t at_ns = 0;  ///< virtual time

    bool operator==(const Entry&) const = default;
  };

  /// What the run was, by name, in order.
  using Header = std::vector<std::pair<std::string, std::string>>;

  /// `names_work`: operators and allocations have entries of their own, so that a difference names
  /// the operator; else they are hashed.
  explicit RunLog(Header header = {}, bool names_work = false)
      : header_(std::move(header)), names_work_(names_work) {}

  /// Errors: NotFound; InvalidArgument that names the line and says what is wrong there.
  static absl::StatusOr<RunLog> read(const std::string& path);
  static absl::StatusOr<RunLog> parse(absl::string_view text);
  std::string to_string() const;

  const Header& header() const { return header_; }
  /// Empty if the header has no such name.
  std::string header(absl::string_view name) const;
  /// Names what differs, with both values; empty if nothing does.
  std::string difference_of_header(const Header& other) const;

  bool names_work() const { return names_work_; }
  /// False for one that was read and lacks its last line: its run was ended from outside, and is
  /// followed as far as the log goes.
  bool is_whole() const { return is_whole_; }
  const std::vector<Entry>& entries() const { return entries_; }
  const std::string& word(uint32_t number) const { return words_[number]; }
  /// "rank 2 at store set ready/3, drawn of 3".
  std::string describe(const Entry& entry) const;

  uint32_t intern(absl::string_view text);
  void append(const Entry& entry) { entries_.push_back(entry); }

 private:
  friend class RunWitness;
  std::string lines_from(size_t first_word, size_t first_entry) const;

  Header header_;
  bool names_work_;
  bool is_whole_ = true;
  std::vector<std::string> words_;
  std::unordered_map<std::string, uint32_t> numbers_;  // of words
  std::vector<Entry> entries_;
};

class RunWitness {
 public:
  /// `ranks`: of the scheduler's tasks. `expected`: the log to follow, or null; it outlives this
  /// object. The run is written to `log`, which names work as `expected` does.
  RunWitness(std::vector<int> ranks, RunLog& log, const RunLog* expected);

  /// Also writes the log to a file, as the run goes on. Errors: those of the file.
  absl::Status write_to(const std::string& path);
  /// The run is over. Work behind the last entry of a rank is added, at the time of the last of it.
  /// Errors: those of the file.
  absl::Status end();

  /// The index of the ready task that goes on; `drawn` is that of this run.
  size_t choose_task(absl::Span<const int> ready, size_t drawn, int64_t now_ns);
  /// A number below `options`; `drawn` is that of this run.
  int64_t choose(int rank, int64_t options, int64_t drawn, int64_t now_ns);
  /// The rank comes to something that others notice, or not (an operator, an allocation).
  void site(int rank, absl::string_view words, int64_t now_ns, bool is_work);
  void note(RunLog::Kind kind, int rank, absl::string_view words, int64_t value, int64_t now_ns);

  /// How the run differs first from the log that it follows, with both sides; empty if it does not
  /// so far.
  const std::string& difference() const { return difference_; }

 private:
  struct Place {
    uint32_t word = 0;
    int64_t num_work = 0;  // since the last entry
    uint64_t hash = 0;     // of it
    int64_t at_ns = 0;     // of the last of it
  };

  const RunLog::Entry* next_expected() const;
  void add(RunLog::Entry entry);
  void flush_work(int rank, int64_t now_ns);
  void write_new();

  const std::vector<int> ranks_;  // by task
  RunLog& log_;
  const RunLog* const expected_;
  std::vector<Place> places_;  // by rank
  std::string difference_;
  std::ofstream file_;
  size_t written_words_ = 0;
  size_t written_entries_ = 0;
  uint64_t digest_;  // of the entries in the file
};

}  // namespace accelerate::simulator
