/// The machine's files as a run sees them that must not change them: what the run writes, renames
/// or removes is so in memory alone, and is forgotten with this object. A run that computes shapes
/// without values has its files here, because what was not computed must replace nothing.
///
/// A folder in memory keeps what the run changed in it; all other names are the machine's, as they
/// are when they are asked for. Links of the machine are followed. Runs of equal 8-byte words, as a
/// tensor without values is written, take no memory.
///
/// Errors:  as FileSystem's; those of the machine for files that the run did not change. Nothing in
///          memory is refused for want of room or permission.
/// Threads: one at a time, as for all ranks of a simulated cluster; mappings may end on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"

namespace accelerate::simulator {

class OverlayFiles final : public FileSystem {
 public:
  OverlayFiles();
  ~OverlayFiles() override;

  /// The files in memory that have a name, and their bytes.
  struct Use {
    int64_t files = 0;
    int64_t bytes = 0;
  };
  Use use() const;

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
  class Contents;
  class Reader;
  class Writer;
  class Scratch;
  struct Node;
  using NodePtr = std::shared_ptr<Node>;

  // A name in a folder.
  struct Place {
    NodePtr folder;  // null: the root, which has no name
    std::string name;
    NodePtr node;  // null: the name does not exist
  };

  static NodePtr child(Node& folder, const std::string& name);
  static Use use_of(const Node& node);
  absl::StatusOr<Place> find(const std::string& what, const std::string& path,
                             bool follows_last = true, bool makes_folders = false);
  absl::StatusOr<Place> find_existing(const std::string& what, const std::string& path,
                                      bool follows_last = true);
  absl::StatusOr<std::vector<std::string>> names_in(const Node& folder);

  HostFiles host_{/*parallelism=*/1};
  const NodePtr root_;
};

}  // namespace accelerate::simulator
