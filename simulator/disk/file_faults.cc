#include "simulator/disk/file_faults.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

// By FileFaultKind and by Unsynced.
constexpr const char* kKindNames[] = {"kRankDies", "kMachineDies",      "kTornWrite",
                                      "kDiskFull", "kInputOutputError", "kBitFlip"};
constexpr const char* kUnsyncedNames[] = {"kLost", "kKept", "kDrawn"};

// By FileFaultKind.
constexpr FaultKind kKinds[] = {FaultKind::kCrash, FaultKind::kPowerLoss, FaultKind::kTorn,
                                FaultKind::kFull,  FaultKind::kIoError,   FaultKind::kBitFlip};

FaultRules rules_of(const std::vector<FileFault>& faults) {
  FaultRules plan;
  for (const FileFault& fault : faults) plan.rules.push_back(rule_of(fault));
  return plan;
}

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

FaultRule rule_of(const FileFault& fault) {
  FaultEffect effect{.kind = kKinds[static_cast<size_t>(fault.kind)]};
  const bool damages =
      fault.kind == FileFaultKind::kMachineDies || fault.kind == FileFaultKind::kTornWrite;
  if (damages && fault.unsynced != Unsynced::kLost) {
    effect.word = accelerate::to_string(fault.unsynced);
  }
  if (fault.kind == FileFaultKind::kTornWrite) effect.count = fault.bytes;
  if (fault.kind == FileFaultKind::kBitFlip) {
    effect.bit = fault.bit;
    effect.on_medium = fault.on_medium;
  }
  const bool lasts =
      fault.kind == FileFaultKind::kDiskFull || fault.kind == FileFaultKind::kInputOutputError;
  if (lasts && fault.until != FileFault::kForever) {
    effect.lasts = {.kind = FaultSpan::Kind::kSites,
                    .number = fault.until - fault.operation,
                    .site = Site::kFile};
  }
  return {.where = on_rank(fault.rank),
          .when = at_site(Site::kFile, fault.operation),
          .effects = {effect}};
}

FaultPlan::FaultPlan(const std::vector<FileFault>& faults, int world_size, uint64_t seed,
                     std::shared_ptr<SimDisk> disk, Hooks hooks)
    : own_(rules_of(faults), {.world_size = world_size,
                              .ranks_per_node = world_size,
                              .seed = seed,
                              .has_simulated_disk = disk != nullptr,
                              .has_shared_disk = true}),
      disk_(std::move(disk)),
      hooks_(std::move(hooks)),
      deaths_(hooks_.deaths != nullptr ? hooks_.deaths : std::make_shared<Deaths>(world_size)),
      operations_(world_size) {
  if (disk_ != nullptr) disk_->operations_.assign(world_size, 0);
}

void FaultPlan::end() {
  has_ended_ = true;
  // The hooks refer to the run, which is over.
  hooks_ = {};
}

SimDisk* FaultPlan::disk_of(int rank) const {
  return hooks_.disk_of ? hooks_.disk_of(rank) : disk_.get();
}

absl::Status FaultPlan::refuse_if_dead(int rank) {
  return is_dead(rank) ? deaths_->refuse(rank) : absl::OkStatus();
}

void FaultPlan::note(const SiteFault& fault, bool of_plan, const std::string& what,
                     const Operation& operation) {
  if (of_plan) hooks_.sites->touched(fault, 1);
  if (!noted_.emplace(of_plan, fault.rule).second) return;
  fired_.push_back(absl::StrCat(what, " at rank ", operation.rank, "'s operation ",
                                operations_[operation.rank] - 1, ": ", operation.name, " ",
                                operation.path));
}

void FaultPlan::kill_machine(const SiteFault& fault, bool of_plan, const Operation& operation,
                             int64_t written) {
  std::string what = "the machine died by a file fault";
  if (written >= 0) {
    absl::StrAppend(&what, " after ", written, " of ", operation.bytes, " bytes,");
  }
  note(fault, of_plan, what, operation);
  const std::string how =
      absl::StrCat(what, " at rank ", operation.rank, "'s operation ",
                   operations_[operation.rank] - 1, ": ", operation.name, " ", operation.path);
  deaths_->kill(operation.rank, how, /*is_cause=*/true);
  const std::vector<int> ranks = hooks_.machine_of
                                     ? hooks_.machine_of(operation.rank)
                                     : IndexSet::every().below(own_.grounds().world_size);
  for (const int rank : ranks) deaths_->kill(rank, how, /*is_cause=*/false);
  const auto unsynced = value_of<Unsynced>(fault.effect->word).value_or(Unsynced::kLost);
  disk_of(operation.rank)->crash(unsynced, fault.random);
  if (hooks_.machine_died) hooks_.machine_died();
}

// Does what the fault does once.
void FaultPlan::strike(SiteFault fault, bool of_plan, const Operation& operation,
                       Verdict& verdict) {
  const int rank = operation.rank;
  if (is_dead(rank)) return;
  const FaultEffect& effect = *fault.effect;
  switch (effect.kind) {
    case FaultKind::kCrash:
      note(fault, of_plan, absl::StrCat("rank ", rank, " was killed by a file fault"), operation);
      deaths_->kill(rank,
                    absl::StrCat("rank ", rank, " was killed by a file fault at its operation ",
                                 operations_[rank] - 1, ": ", operation.name, " ", operation.path),
                    /*is_cause=*/true);
      break;
    case FaultKind::kPowerLoss:
      if (!operation.on_host) kill_machine(fault, of_plan, operation, /*written=*/-1);
      break;
    case FaultKind::kTorn: {
      if (operation.on_host) break;
      int64_t written = -1;
      if (operation.write) {
        const auto drawn = static_cast<int64_t>(fault.random.below(operation.bytes + 1));
        written = std::min(effect.count.value_or(drawn), operation.bytes);
        operation.write(written, /*durably=*/true);
      }
      kill_machine(fault, of_plan, operation, written);
      break;
    }
    case FaultKind::kBitFlip: {
      if (operation.on_host || !operation.reads || operation.bytes == 0) break;
      const int64_t bits = 8 * operation.bytes;
      const auto drawn = static_cast<int64_t>(fault.random.below(bits));
      verdict.flipped_bit = effect.bit.value_or(drawn) % bits;
      verdict.on_medium = effect.on_medium;
      note(fault, of_plan,
           absl::StrCat("bit ", *verdict.flipped_bit, " of what was read was flipped"), operation);
      break;
    }
    default: break;
  }
}

void FaultPlan::strike_lasting(const SiteFault& fault, bool of_plan, const Operation& operation,
                               Verdict& verdict) {
  if (fault.effect->kind == FaultKind::kIoError) {
    note(fault, of_plan, "the disk failed by a file fault", operation);
    verdict.status.Update(absl::DataLossError(
        absl::StrCat("cannot ", operation.name, " ", operation.path, ": input/output error")));
    return;
  }
  if (!operation.needs_room) return;
  // The first write takes the room that is left; later ones find none.
  if (operation.write && !operation.on_host && !noted_.contains({of_plan, fault.rule})) {
    DeterministicRandom random = fault.random;
    operation.write(static_cast<int64_t>(random.below(operation.bytes + 1)), /*durably=*/false);
  }
  note(fault, of_plan, "the disk was full by a file fault", operation);
  verdict.status.Update(absl::ResourceExhaustedError(
      absl::StrCat("cannot ", operation.name, " ", operation.path, ": no space left on the disk")));
}

FaultPlan::Verdict FaultPlan::begin(const Operation& operation) {
  const int rank = operation.rank;
  if (has_ended_) return {.status = refuse_if_dead(rank)};
  if (!operation.on_host) run_other_ranks(rank);
  if (is_dead(rank)) return {.status = deaths_->refuse(rank)};
  ++operations_[rank];
  if (disk_ != nullptr) disk_->operations_[rank] = operations_[rank];
  Verdict verdict;
  if (!own_.plan().empty()) {
    for (SiteFault& fault : own_.reach(rank, Site::kFile, operation.name, /*now_ns=*/0)) {
      strike(std::move(fault), /*of_plan=*/false, operation, verdict);
    }
  }
  if (hooks_.sites != nullptr) {
    const std::string words = absl::StrCat(operation.name, " ", operation.path);
    for (SiteFault& fault : hooks_.sites->reach(rank, Site::kFile, words)) {
      strike(std::move(fault), /*of_plan=*/true, operation, verdict);
    }
  }
  for (const FaultKind kind : {FaultKind::kFull, FaultKind::kIoError}) {
    if (is_dead(rank)) break;
    for (const FaultRun::Lasting* each : own_.lasting(kind, rank, /*now_ns=*/0)) {
      strike_lasting(each->fault, /*of_plan=*/false, operation, verdict);
    }
    if (hooks_.sites == nullptr) continue;
    if (const auto fault = hooks_.sites->lasting(rank, kind)) {
      strike_lasting(*fault, /*of_plan=*/true, operation, verdict);
    }
  }
  if (is_dead(rank)) return {.status = deaths_->refuse(rank)};
  return verdict;
}

}  // namespace accelerate::simulator
