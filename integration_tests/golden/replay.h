/// Replays golden files: recorded cases, run through the library, compared, counted.
///
/// A file is a JSON object with a `family` and `cases`, each with an `id`, an `in` and an `out`.
/// A case passes if the answer is the recorded one; differs by decision if decisions changed what
/// is expected (see decisions.h) and the answer is that; is missing if it asks for what this
/// version does not have (see answers.h); and fails otherwise.
/// Threads: one; it runs simulated clusters.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

struct Totals {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t by_decision = 0;
  int64_t missing = 0;

  Totals& operator+=(const Totals& other);
  bool operator==(const Totals&) const = default;
};

/// `N passed, M failed`, and `, K differ by decision` and `, L missing` if any do.
std::string to_string(const Totals& totals);

/// How many failures are printed; the rest is only counted.
inline constexpr int64_t kMaxPrinted = 20;

struct GoldenFile {
  std::string path;
  std::string family;
  nlohmann::json cases;
};

/// Errors: not found; invalid argument for a file that is not a golden file, or of an unknown
/// family.
absl::StatusOr<GoldenFile> load_file(const std::string& path);
absl::StatusOr<GoldenFile> parse_file(const std::string& path, const std::string& text);

class Replayer {
 public:
  /// Prints failures to `out`, which must outlive it.
  explicit Replayer(std::ostream& out, const std::vector<Decision>& decisions = all_decisions())
      : out_(out), decisions_(decisions) {}

  /// Runs all cases of the file.
  Totals replay(const GoldenFile& file);
  /// How many failures were not printed so far.
  int64_t not_printed() const { return failures_ > kMaxPrinted ? failures_ - kMaxPrinted : 0; }
  /// How many cases asked for what is not there, by its name.
  const std::map<std::string, int64_t>& missing() const { return missing_; }

 private:
  void print_failure(const std::string& id, const std::string& path, const std::string& expected,
                     const std::string& got, const std::vector<std::string>& decisions);

  std::ostream& out_;
  const std::vector<Decision>& decisions_;
  int64_t failures_ = 0;
  std::map<std::string, int64_t> missing_;
};

/// The program: replays the files and prints what is missing and the totals, with several files
/// also each one's.
/// Relative paths are below `base` unless it is empty.
/// Returns the exit status: 0 if nothing failed, 1 if cases did, 2 if it cannot be run.
int run(const std::vector<std::string>& paths, const std::string& base, std::ostream& out,
        std::ostream& err);

}  // namespace accelerate::golden
