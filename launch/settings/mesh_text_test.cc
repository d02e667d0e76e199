// How a plan that is shown tells of the arrangement of ranks.
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "launch/settings/settings.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::settings {
namespace {

// The text for a mesh with these sizes, by the names of axes.
std::string text_of(const TypedFlags& sizes, bool is_used = true) {
  TypedFlags typed;
  if (is_used) typed["use_parallelism_config"] = {"true"};
  for (const auto& [axis, size] : sizes) {
    typed[absl::StrCat("parallelism_config_", axis, "_size")] = size;
  }
  return mesh_text(*Settings::resolve(typed, nullptr, {}));
}

TEST(MeshText, HasEachAxisOfAMesh) {
  EXPECT_EQ(text_of({{"dp_shard", {"4"}}, {"tp", {"2"}}, {"ep", {"2"}}}),
            "mesh: dp_shard 4 x tp 2, ep 2\n");
  EXPECT_EQ(text_of({{"pp", {"2"}}, {"dp_replicate", {"2"}}, {"dp_shard", {"2"}}, {"cp", {"2"}}}),
            "mesh: pp 2 x dp_replicate 2 x dp_shard 2 x cp 2\n");
  EXPECT_EQ(text_of({{"sp", {"2"}}, {"dp_shard", {"2"}}}), "mesh: dp_shard 2 x sp 2\n");
  EXPECT_EQ(text_of({{"sp", {"2"}}}), "mesh: sp 2, in as many replicas as ranks allow\n");
}

TEST(MeshText, IsEmptyWhereNoMeshIsUsed) {
  EXPECT_EQ(text_of({}), "");
  EXPECT_EQ(text_of({{"tp", {"2"}}}, /*is_used=*/false), "");
}

}  // namespace
}  // namespace accelerate::launcher::settings
