/// A disk in memory that knows what would be left of it if the machine died.
///
/// Every file has bytes as they are and bytes that are durable; every folder has names as they are
/// and names that are durable. The rules are accelerate::FileSystem's, read as strictly as they are
/// written:
///
///   sync(file)              its bytes are durable; not its name
///   sync_directory(folder)  the names made, renamed and removed in it are durable; not those below
///   rename, exchange        one step: durable as a whole or not at all. Across folders it takes a
///                           sync of both
///
/// A name that is durable takes the older changes with it that it came about by: after "a to b, b
/// to c" in several folders, nobody finds the file under two names or none.
///
/// A reader keeps the file that it opened, whatever becomes of its name. map() is a picture of the
/// bytes at that time, without a copy: who writes to a file that is mapped, or was synced, works
/// on a copy from then on. read_at() sees what is written meanwhile.
///
/// Not modelled: how long anything takes, permissions, links, and space for names.
/// Errors:  as FileSystem's; ResourceExhausted when full: a write fills what is left, and fails.
/// Threads: one at a time, as the ranks of a simulated cluster are; mappings may end on any.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/platform/file_system.h"
#include "simulator/core/random.h"

namespace accelerate::simulator {

/// What becomes of changes that nobody has synced when the machine dies.
enum class Unsynced {
  kLost,
  kKept,
  /// Each change of a name, each page of 4096 bytes and each file's length goes its own way, as the
  /// random numbers say. What is lost of a file that kept its length reads as zeros.
  kDrawn,
};

struct SimDiskOptions {
  /// The folder that is the disk's root; it is always there.
  std::string mount_point = "/sim";
  /// In bytes of files that have a name.
  int64_t capacity = std::numeric_limits<int64_t>::max();
  /// Whether it can exchange two names; else exchange() returns Unimplemented.
  bool can_exchange = true;
};

class SimReadableFile : public ReadableFile {
 public:
  /// Flips a bit of the file on the disk, durably. Maps that are there keep the old one.
  virtual void damage(int64_t bit) = 0;
};

class SimWritableFile : public WritableFile {
 public:
  /// As write_at, and these bytes are durable at once; those around them are as durable as before.
  virtual absl::Status write_through(int64_t offset, absl::Span<const std::byte> data) = 0;
};

class SimDisk final : public FileSystem {
 public:
  explicit SimDisk(SimDiskOptions options = {});
  ~SimDisk() override;

  const std::string& mount_point() const { return options_.mount_point; }
  /// Whether a path is on this disk; "." and ".." are resolved by name.
  bool contains(const std::string& path) const;
  int64_t used() const;

  /// The machine dies and starts again. Files open until then are nobody's any more.
  void crash(Unsynced unsynced, DeterministicRandom random = DeterministicRandom(0));

  /// How many operations a rank made on it in the latest run of a cluster: what FileFaults count.
  int64_t operations(int rank) const;

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<SimReadableFile>> open_file(const std::string& path);
  absl::StatusOr<std::unique_ptr<SimWritableFile>> create_file(const std::string& path);
  absl::StatusOr<FileInfo> info(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& directory) override;
  absl::Status make_directories(const std::string& path) override;
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status exchange(const std::string& first, const std::string& second) override;
  absl::Status remove(const std::string& path) override;
  absl::Status sync_directory(const std::string& path) override;
  std::string temporary_name(const std::string& path) const override;
  int parallelism() const override { return 1; }

 private:
  friend class FaultPlan;
  struct Node;
  class Reader;
  class Writer;
  using NodePtr = std::shared_ptr<Node>;

  // A name in a folder.
  struct Place {
    NodePtr folder;  // null: the root, which has no name
    std::string name;
    NodePtr node;  // null: there is none
  };
  // What a name stands for from now on.
  struct Change {
    NodePtr folder;
    std::string name;
    NodePtr node;  // null: nothing
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
  void change(std::vector<Change> changes);
  void make_durable(const Step& step);
  NodePtr survivor(const Node& node, Unsynced unsynced, DeterministicRandom& random);
  NodePtr new_folder();
  void empty_folders();

  const SimDiskOptions options_;
  // What is durable and what is not may hold each other in a ring: emptied at the end.
  std::vector<std::weak_ptr<Node>> folders_;
  NodePtr root_;
  std::map<int64_t, Step> pending_;  // by number, which grows
  int64_t next_step_ = 0;
  std::map<std::pair<const Node*, std::string>, int64_t> last_step_;  // by folder and name
  std::vector<int64_t> operations_;                                   // by rank
};

}  // namespace accelerate::simulator
