#include "accelerate/files/formats/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

Manifest example() {
  Manifest manifest{.id = "5be0cd19",
                    .durable = false,
                    .world_size = 2,
                    .mesh = "tp 2",
                    .share_ranks = {0},
                    .iteration = 3,
                    .step = 40,
                    .metric = 0.1,
                    .numerics = kShapesNumerics};
  manifest.versions["libtorch"] = "2.6.0";
  manifest.counts["model"] = 1;
  manifest.files["model.safetensors"] = {
      .size = 608, .crc32c = 0x9a71bb4c, .header = 0x12, .tensors = {{"weight", 0x61c32f10}}};
  manifest.files["scheduler.json"] = {.size = 12, .crc32c = 7};
  manifest.files["below/hook.txt"] = {};
  return manifest;
}

std::string error_of(const std::string& text) {
  const auto parsed = parse_manifest(text);
  return parsed.ok() ? "fine" : std::string(parsed.status().message());
}

TEST(Manifest, ComesBackAsItWas) {
  const auto parsed = parse_manifest(manifest_text(example()));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, example());
}

// Readers that have only doubles read every count.
TEST(Manifest, CountsUpToWhatDoublesHold) {
  Manifest manifest = example();
  manifest.step = int64_t{1} << 53;
  const auto parsed = parse_manifest(manifest_text(manifest));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, manifest);
  ++manifest.step;
  EXPECT_THAT(error_of(manifest_text(manifest)), HasSubstr("expected a count at \"/step\""));
}

TEST(Manifest, WithoutAMeshSaysNothingOfOne) {
  Manifest manifest = example();
  manifest.mesh.clear();
  manifest.share_ranks.clear();
  manifest.numerics.clear();
  manifest.metric.reset();
  const std::string text = manifest_text(manifest);
  EXPECT_THAT(text, testing::Not(AnyOf(HasSubstr("mesh"), HasSubstr("share"), HasSubstr("metric"),
                                       HasSubstr("numerics"))));
  EXPECT_EQ(*parse_manifest(text), manifest);
}

TEST(Manifest, EveryChangedByteIsSeen) {
  const std::string text = manifest_text(example());
  int changed = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char bit : {1, 4, 32}) {
      std::string damaged = text;
      damaged[i] ^= bit;
      const auto parsed = parse_manifest(damaged);
      // White space says nothing.
      if (parsed.ok()) {
        EXPECT_EQ(*parsed, example()) << i;
      } else {
        ++changed;
      }
    }
  }
  EXPECT_GT(changed, static_cast<int>(text.size()));
}

TEST(Manifest, EveryTruncationIsSeen) {
  const std::string text = manifest_text(example());
  // The last byte ends the line.
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    EXPECT_FALSE(parse_manifest(text.substr(0, size)).ok()) << size;
  }
}

TEST(Manifest, WhatIsNoneIsRefused) {
  EXPECT_THAT(error_of(""), HasSubstr("not JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(error_of("{}"), HasSubstr("format"));
  const std::string opened(200'000, '['), closed(200'000, ']');
  EXPECT_THAT(error_of(opened), HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of("{\"files\":" + opened + closed + "}"), HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of(R"({"format": "accelerate-checkpoint", "version": 2,
                           "checksum": "00000000"})"),
              HasSubstr("version 2"));
  EXPECT_THAT(error_of(R"({"format": "accelerate-checkpoint", "version": -1,
                           "checksum": "00000000"})"),
              HasSubstr("expected a count at \"/version\""));
  EXPECT_THAT(error_of(R"({"format": "accelerate-checkpoint", "version": 1,
                           "checksum": "zz"})"),
              HasSubstr("expected a checksum of eight digits at \"/checksum\""));
}

TEST(Manifest, NamesStayInTheFolder) {
  for (const char* name : {"../x", "/etc/x", "a//b", "a/../../b", "", ".", "a/."}) {
    Manifest manifest = example();
    manifest.files[name] = {};
    EXPECT_THAT(error_of(manifest_text(manifest)), HasSubstr("not the name of a file")) << name;
  }
}

TEST(Manifest, FilesTravelByThemselves) {
  const auto files = parse_manifest_files(manifest_files_text(example().files));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(*files, example().files);
  EXPECT_FALSE(parse_manifest_files("{\"a\": 3}").ok());
  EXPECT_TRUE(parse_manifest_files("{}").ok());
}

}  // namespace
}  // namespace accelerate
