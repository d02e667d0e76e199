/// The manifest, which makes a folder a checkpoint: manifest.json, written last. It lists every
/// other file with its size and checksum, and ends with its own checksum.
///
///   {"format": "accelerate-checkpoint", "version": 1, "id": "5be0cd19", "durable": true,
///    "world_size": 4, "mesh": "dp_replicate 2 x tp 2", "share_ranks": [0, 2],
///    "iteration": 3, "step": 40, "metric": 0.93, "numerics": "shapes",
///    "versions": {"accelerate": ..., "libtorch": ...}, "counts": {"model": 1, "optimizer": 1,
///    ...}, "files": {"model.safetensors": {"size": 608, "crc32c": "9a71bb4c",
///                                    "header": "c2f1a9b0", "tensors": {"weight": "61c32f10"}},
///                                    ...},
///    "checksum": "0be1d1a5"}
///
/// Checksums are CRC-32C. The manifest's own is that of its JSON without it, keys sorted and
/// without white space. Unknown fields are ignored.
/// Errors:  absl::DataLoss naming what is wrong with the text.
/// Threads: values. Needs no LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate {

inline constexpr char kManifestName[] = "manifest.json";
/// Manifest::numerics of a run that computed shapes without values.
inline constexpr char kShapesNumerics[] = "shapes";

struct ManifestFile {
  int64_t size = 0;
  uint32_t crc32c = 0;
  /// The checksums of a file with tensors: of its header, and of each tensor.
  std::optional<uint32_t> header;
  std::map<std::string, uint32_t> tensors;

  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  /// The same in all folders that one save wrote, on several nodes, and different for another save.
  std::string id;
  /// Whether it was synced; if not, it may not survive a crash of the machine.
  bool durable = true;
  int64_t world_size = 1;
  /// How the ranks were arranged, if several had the same share of the data; otherwise empty, and
  /// not in the text.
  std::string mesh;
  /// With a mesh: the first rank of each share of the data, by the share's number.
  std::vector<int64_t> share_ranks;
  /// The number of this checkpoint, and of micro-steps before it.
  int64_t iteration = 0;
  int64_t step = 0;
  /// How good the state is, if the program said so: a finite number, the greater the better.
  std::optional<double> metric = std::nullopt;
  /// kShapesNumerics if a simulation wrote it that computed shapes without values, so that its
  /// tensors are not results; otherwise empty, and not in the text.
  std::string numerics;
  /// The versions of the software that wrote it.
  std::map<std::string, std::string> versions;
  /// The number of objects of each kind: "model", "optimizer", ...
  std::map<std::string, int64_t> counts;
  /// By name, relative to the folder.
  std::map<std::string, ManifestFile> files;

  bool operator==(const Manifest&) const = default;
};

std::string manifest_text(const Manifest& manifest);
absl::StatusOr<Manifest> parse_manifest(absl::string_view text);

/// One file's entry, to travel between ranks.
std::string manifest_files_text(const std::map<std::string, ManifestFile>& files);
absl::StatusOr<std::map<std::string, ManifestFile>> parse_manifest_files(absl::string_view text);

/// Eight hexadecimal digits, as in manifests.
std::string checksum_text(uint32_t crc32c);

}  // namespace accelerate
