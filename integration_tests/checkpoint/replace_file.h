/// A checkpoint one of whose files has other contents than were saved, and a manifest that knows
/// them: damage that no checksum finds.
#pragma once

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "accelerate/base/checksum.h"
#include "accelerate/files/formats/manifest.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

inline void replace_file(FileSystem& files, const std::string& folder, const std::string& name,
                         const std::string& text) {
  ASSERT_TRUE(write_file(files, join_path(folder, name), text).ok());
  const std::string path = join_path(folder, kManifestName);
  const auto manifest_before = read_file(files, path);
  ASSERT_TRUE(manifest_before.ok()) << manifest_before.status();
  auto manifest = parse_manifest(*manifest_before);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ManifestFile& entry = manifest->files.at(name);
  entry.size = static_cast<int64_t>(text.size());
  entry.crc32c = internal::crc32c(text);
  ASSERT_TRUE(write_file(files, path, manifest_text(*manifest)).ok());
}

}  // namespace accelerate
