#include "simulator/disk/file_faults.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

// By FileFaultKind and by Unsynced.
constexpr const char* kKindNames[] = {"kRankDies", "kMachineDies",      "kTornWrite",
                                      "kDiskFull", "kInputOutputError", "kBitFlip"};
constexpr const char* kUnsyncedNames[] = {"kLost", "kKept", "kDrawn"};

// Distinct from the random streams of ranks.
constexpr uint64_t kFaultStreams = uint64_t{1} << 40;

// A program whose operations were refused this often is in a loop, not in a destructor.
constexpr int kRefusals = 10'000;

}  // namespace

std::string FileFault::to_string() const {
  std::string text =
      absl::StrCat("{.rank = ", rank, ", .operation = ", operation,
                   ", .kind = FileFaultKind::", kKindNames[static_cast<size_t>(kind)]);
  if (until != kForever) absl::StrAppend(&text, ", .until = ", until);
  if (unsynced != Unsynced::kLost) {
    absl::StrAppend(&text,
                    ", .unsynced = Unsynced::", kUnsyncedNames[static_cast<size_t>(unsynced)]);
  }
  if (bytes) absl::StrAppend(&text, ", .bytes = ", *bytes);
  if (bit) absl::StrAppend(&text, ", .bit = ", *bit);
  if (on_medium) absl::StrAppend(&text, ", .on_medium = true");
  return absl::StrCat(text, "}");
}

std::string FileFault::problem(int world_size) const {
  if (rank < 0 || rank >= world_size) return "there is no such rank";
  if (operation < 0) return "operations are counted from 0";
  if (until <= operation) return "it is over before it begins";
  if (bytes.value_or(0) < 0) return "no part of a write is that short";
  if (bit.value_or(0) < 0) return "bits are counted from 0";
  return "";
}

FaultPlan::FaultPlan(std::vector<FileFault> faults, int world_size, uint64_t seed,
                     std::shared_ptr<SimDisk> disk, Hooks hooks)
    : faults_(std::move(faults)),
      seed_(seed),
      disk_(std::move(disk)),
      hooks_(std::move(hooks)),
      has_fired_(faults_.size()),
      deaths_(world_size),
      is_cause_(world_size),
      refused_(world_size) {
  if (disk_ != nullptr) disk_->operations_.assign(world_size, 0);
}

void FaultPlan::end() {
  has_ended_ = true;
  // The hooks refer to the run, which is over.
  hooks_ = {};
}

DeterministicRandom FaultPlan::random_for(size_t fault) const {
  return DeterministicRandom::stream(seed_, kFaultStreams + fault);
}

void FaultPlan::check_alive(int rank) const {
  if (is_dead(rank)) throw RankKilled(deaths_[rank], is_cause_[rank]);
}

std::exception_ptr FaultPlan::death(int rank) const {
  return std::make_exception_ptr(RankKilled(deaths_[rank], is_cause_[rank]));
}

absl::Status FaultPlan::refuse(int rank) {
  // During unwinding an exception out of a destructor would end the program.
  if (++refused_[rank] > kRefusals && std::uncaught_exceptions() == 0) check_alive(rank);
  return absl::AbortedError(deaths_[rank]);
}

absl::Status FaultPlan::refuse_if_dead(int rank) {
  return is_dead(rank) ? refuse(rank) : absl::OkStatus();
}

void FaultPlan::fire(size_t fault, const std::string& what, const Operation& operation) {
  if (has_fired_[fault]) return;
  has_fired_[fault] = true;
  fired_.push_back(absl::StrCat(what, " at rank ", operation.rank, "'s operation ",
                                disk_->operations_[operation.rank] - 1, ": ", operation.name, " ",
                                operation.path));
}

void FaultPlan::kill_machine(size_t fault, const Operation& operation, int64_t written) {
  std::string what = "the machine died by a file fault";
  if (written >= 0) {
    absl::StrAppend(&what, " after ", written, " of ", operation.bytes, " bytes,");
  }
  fire(fault, what, operation);
  for (size_t rank = 0; rank < deaths_.size(); ++rank) {
    if (deaths_[rank].empty()) deaths_[rank] = fired_.back();
  }
  is_cause_[operation.rank] = true;
  disk_->crash(faults_[fault].unsynced, random_for(fault));
  if (hooks_.machine_died) hooks_.machine_died();
}

FaultPlan::Verdict FaultPlan::begin(const Operation& operation) {
  const int rank = operation.rank;
  if (has_ended_) return {.status = is_dead(rank) ? refuse(rank) : absl::OkStatus()};
  run_other_ranks(rank);
  if (is_dead(rank)) return {.status = refuse(rank)};
  const int64_t number = disk_->operations_[rank]++;
  Verdict verdict;
  for (size_t i = 0; i < faults_.size() && !is_dead(rank); ++i) {
    const FileFault& fault = faults_[i];
    // The number of the latest operation of the fault's rank.
    const int64_t reached = disk_->operations_[fault.rank] - 1;
    const bool now = fault.rank == rank && fault.operation == number;
    const bool lasts = fault.operation <= reached && reached < fault.until;
    switch (fault.kind) {
      case FileFaultKind::kRankDies:
        if (!now) break;
        fire(i, absl::StrCat("rank ", rank, " was killed by a file fault"), operation);
        deaths_[rank] = absl::StrCat("rank ", rank, " was killed by a file fault at its operation ",
                                     number, ": ", operation.name, " ", operation.path);
        is_cause_[rank] = true;
        break;
      case FileFaultKind::kMachineDies:
        if (now) kill_machine(i, operation, /*written=*/-1);
        break;
      case FileFaultKind::kTornWrite: {
        if (!now) break;
        int64_t written = -1;
        if (operation.write) {
          DeterministicRandom random = random_for(i);
          written = std::min<int64_t>(fault.bytes.value_or(random.below(operation.bytes + 1)),
                                      operation.bytes);
          operation.write(written, /*durably=*/true);
        }
        kill_machine(i, operation, written);
        break;
      }
      case FileFaultKind::kDiskFull:
        if (!lasts || !operation.needs_room) break;
        // The first write takes the room that is left; later ones find none.
        if (operation.write && !has_fired_[i]) {
          DeterministicRandom random = random_for(i);
          operation.write(static_cast<int64_t>(random.below(operation.bytes + 1)),
                          /*durably=*/false);
        }
        fire(i, "the disk was full by a file fault", operation);
        verdict.status.Update(absl::ResourceExhaustedError(absl::StrCat(
            "cannot ", operation.name, " ", operation.path, ": no space left on the disk")));
        break;
      case FileFaultKind::kInputOutputError:
        if (fault.rank != rank || !lasts) break;
        fire(i, "the disk failed by a file fault", operation);
        verdict.status.Update(absl::DataLossError(
            absl::StrCat("cannot ", operation.name, " ", operation.path, ": input/output error")));
        break;
      case FileFaultKind::kBitFlip: {
        if (!now || !operation.reads || operation.bytes == 0) break;
        const int64_t bits = 8 * operation.bytes;
        DeterministicRandom random = random_for(i);
        verdict.flipped_bit = fault.bit.value_or(random.below(bits)) % bits;
        verdict.on_medium = fault.on_medium;
        fire(i, absl::StrCat("bit ", *verdict.flipped_bit, " of what was read was flipped"),
             operation);
        break;
      }
    }
  }
  if (is_dead(rank)) return {.status = refuse(rank)};
  return verdict;
}

}  // namespace accelerate::simulator
