/// A disk in memory that keeps the durable state beside the current one, to simulate crashes.
///
/// Every file has current bytes and durable bytes; every folder has current names and durable
/// names. The rules are those of accelerate::FileSystem, taken literally:
///
///   sync(file)              makes the file's bytes durable, not its name
///   sync_directory(folder)  makes the names that were made, renamed or removed in the folder
///                           durable, not those in folders below
///   rename, exchange        one step, durable as a whole or not at all; across folders it is
///                           durable after a sync of both
///
/// When a name becomes durable, the older changes that led to it become durable too: after "a to b,
/// b to c" in several folders, the file never has two names or none.
///
/// A reader keeps the file that it opened, even if its name changes. map() is a snapshot of the
/// bytes, without a copy: a later write to a file that is mapped, or was synced, changes a copy.
/// read_at() sees later writes.
///
/// A scratch file has neither a name nor durable bytes, and a crash loses it.
///
/// Not modelled: permissions, links, and space for names. Operations take the time of a DiskQueue.
/// Errors:  as FileSystem's; ResourceExhausted when full: a write fills the space left, and fails.
/// Threads: one at a time, as for all ranks of a simulated cluster; mappings may end on any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/base/enum_text.h"
#include "accelerate/platform/file_system.h"
#include "simulator/core/random.h"

namespace accelerate::simulator {

/// The fate of changes that were not synced when the machine dies.
enum class Unsynced {
  kLost,
  kKept,
  /// Each change of a name, each page of 4096 bytes and each file's length is kept or lost on its
  /// own, as drawn. Lost pages of a file that kept its length read as zeros.
  kDrawn,
};

struct SimDiskOptions {
  /// The folder that is the disk's root; it always exists.
  std::string mount_point = "/sim";
  /// The capacity in bytes, for the files that have a name and for scratch files.
  int64_t capacity = std::numeric_limits<int64_t>::max();
  /// Whether the disk can exchange two names; otherwise exchange() returns Unimplemented.
  bool can_exchange = true;
};

class SimDisk final : public FileSystem {
 public:
  explicit SimDisk(SimDiskOptions options = {});
  ~SimDisk() override;

  /// Whether a path is on this disk; "." and ".." are resolved by name.
  bool contains(const std::string& path) const;
  int64_t used() const;

  /// Simulates a crash and a restart of the machine. Open files no longer belong to the disk.
  void crash(Unsynced unsynced, DeterministicRandom random = DeterministicRandom(0));

  /// The number of operations that a rank made in the latest run of a cluster; FileFaults count
  /// these.
  int64_t operations(int rank) const;

  // For open files of a SimDisk alone.

  /// Flips a bit of the file on the disk, durably. Existing maps keep the old bit.
  static void damage(const ReadableFile& file, int64_t bit);
  static void damage(const ScratchFile& file, int64_t bit);
  /// Like write_at, but these bytes are durable at once; the others are as durable as before.
  static absl::Status write_through(WritableFile& file, int64_t offset,
                                    absl::Span<const std::byte> data);

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ScratchFile>> open_scratch(const std::string& path) override;
  absl::StatusOr<FileInfo> info(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& directory) override;
  absl::Status make_directories(const std::string& path) override;
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status exchange(const std::string& first, const std::string& second) override;
  absl::Status remove(const std::string& path) override;
  absl::Status sync_directory(const std::string& path) override;
  std::string temporary_name(const std::string& path) const override { return path + ".partial"; }

 private:
  friend class FaultPlan;
  struct Node;
  class Reader;
  class Writer;
  class Scratch;
  using NodePtr = std::shared_ptr<Node>;

  // A name in a folder.
  struct Place {
    NodePtr folder;  // null: the root, which has no name
    std::string name;
    NodePtr node;  // null: the name does not exist
  };
  // The new meaning of a name.
  struct Change {
    NodePtr folder;
    std::string name;
    NodePtr node;  // null: the name is removed
  };
  // Changes that become durable together.
  struct Step {
    std::vector<Change> changes;
    std::set<const Node*> unsynced;  // folders
    std::vector<int64_t> after;      // steps about the same names
  };

  std::vector<std::string> names(const std::string& path) const;
  absl::StatusOr<Place> find(const std::string& what, const std::string& path) const;
  absl::StatusOr<Place> find_existing(const std::string& what, const std::string& path) const;
  absl::StatusOr<NodePtr> find_folder(const std::string& what, const std::string& path) const;
  absl::Status write(Node& node, const std::string& path, int64_t offset,
                     absl::Span<const std::byte> data, bool through) const;
  void change(std::vector<Change> changes);
  void make_durable(const Step& step);
  NodePtr survivor(const Node& node, Unsynced unsynced, DeterministicRandom& random);
  NodePtr new_folder();
  void empty_folders();

  const SimDiskOptions options_;
  // Current and durable names may refer to each other in a ring, so all folders are emptied at the
  // end.
  std::vector<std::weak_ptr<Node>> folders_;
  NodePtr root_;
  std::vector<std::weak_ptr<Node>> scratch_;  // those that are open
  std::map<int64_t, Step> pending_;           // by number, in order of time
  int64_t next_step_ = 0;
  std::map<std::pair<const Node*, std::string>, int64_t> last_step_;  // by folder and name
  std::vector<int64_t> operations_;                                   // by rank
};

}  // namespace accelerate::simulator

namespace accelerate {

ACCELERATE_ENUM_TEXTS(simulator::Unsynced, "fate", "lost", "kept", "drawn")

}  // namespace accelerate
