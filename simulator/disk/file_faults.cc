#include "simulator/disk/file_faults.h"

#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

const char* to_string(FileFaultKind kind) {
  switch (kind) {
    case FileFaultKind::kRankDies: return "kRankDies";
    case FileFaultKind::kMachineDies: return "kMachineDies";
    case FileFaultKind::kTornWrite: return "kTornWrite";
    case FileFaultKind::kDiskFull: return "kDiskFull";
    case FileFaultKind::kInputOutputError: return "kInputOutputError";
    case FileFaultKind::kBitFlip: return "kBitFlip";
  }
  return "";
}

const char* to_string(Unsynced unsynced) {
  switch (unsynced) {
    case Unsynced::kLost: return "kLost";
    case Unsynced::kKept: return "kKept";
    case Unsynced::kDrawn: return "kDrawn";
  }
  return "";
}

}  // namespace

std::string FileFault::to_string() const {
  std::string text = absl::StrCat("{.rank = ", rank, ", .operation = ", operation,
                                  ", .kind = FileFaultKind::", simulator::to_string(kind));
  if (until != kForever) absl::StrAppend(&text, ", .until = ", until);
  if (unsynced != Unsynced::kLost) {
    absl::StrAppend(&text, ", .unsynced = Unsynced::", simulator::to_string(unsynced));
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

}  // namespace accelerate::simulator
