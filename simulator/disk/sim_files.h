/// The files of one simulated rank: below the mount point those of the simulated disk, with its
/// faults and its time; elsewhere the machine's own, in no virtual time, or a view of them that the
/// run changes instead (OverlayFiles). Without a simulated disk these files take the time of one.
///
/// Errors:  those of FileSystem and of the faults; Unimplemented for a rename or exchange of names
///          on two disks.
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "simulator/disk/disk_queue.h"
#include "simulator/disk/file_faults.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::simulator {

class SimFiles final : public FileSystem {
 public:
  /// If `disk` is null, all files are the machine's. `queue` is the disk's time in this run, or
  /// then that of the machine's files. `machine` is a view of the machine's files; if null, they
  /// are the machine's own.
  SimFiles(int rank, std::shared_ptr<SimDisk> disk, std::shared_ptr<FaultPlan> plan,
           std::shared_ptr<DiskQueue> queue, std::shared_ptr<FileSystem> machine = nullptr);

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
  /// Contains the rank, because ranks share a process.
  std::string temporary_name(const std::string& path) const override;

 private:
  struct Access;
  class Reader;
  class Writer;
  class Scratch;

  bool is_simulated(const std::string& path) const;
  FileSystem& owner(const std::string& path) const;
  Access access_to(const std::string& path) const;
  absl::Status begin(const char* name, const std::string& path, bool needs_room = false);
  absl::Status begin(const char* name, const std::string& first, const std::string& second);

  const int rank_;
  const std::shared_ptr<SimDisk> disk_;
  const std::shared_ptr<FaultPlan> plan_;
  const std::shared_ptr<DiskQueue> queue_;
  const std::shared_ptr<DiskQueue> host_queue_;
  const std::shared_ptr<FileSystem> machine_;
};

}  // namespace accelerate::simulator
