#include "launch/estimate/parts.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::launcher::estimate {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names_in_order(const ModuleTree& tree) {
  std::vector<std::string> names;
  for (const ModuleTree::Tensor each : tree.tensors_in_order()) {
    const std::string module = tree.module_path(tree.tensor(each).module);
    names.push_back(module.empty() ? tree.tensor(each).name
                                   : module + "." + tree.tensor(each).name);
  }
  return names;
}

TEST(ModuleTree, HasNumberedModulesInTheOrderOfTheirNumbers) {
  Architecture architecture;
  for (const char* name : {"h.10.w", "h.2.w", "h.9.w", "h.b.w", "h.a.w", "e.w"}) {
    architecture.tensors.push_back({.name = name, .dtype = "F32", .elements = 4});
  }
  EXPECT_THAT(names_in_order(module_tree(architecture)),
              ElementsAre("e.w", "h.2.w", "h.9.w", "h.10.w", "h.a.w", "h.b.w"));
}

TEST(ModuleTree, HasTiedTensorsOnceAndBlocksWhole) {
  const Architecture architecture{.tensors = {{.name = "e.w", .dtype = "BF16", .elements = 4},
                                              {.name = "h.0.w", .dtype = "F8_E4M3", .elements = 2}},
                                  .tied = {{"e.w", "head.w"}},
                                  .no_split = {"h.0"}};
  const ModuleTree tree = module_tree(architecture);
  EXPECT_THAT(names_in_order(tree), ElementsAre("e.w", "h.0.w", "head.w"));
  EXPECT_THAT(tree.tied_parameters(), ElementsAre(ElementsAre("e.w", "head.w")));
  const auto of = [&](const char* name) { return tree.tensor(tree.find_tensor(name)); };
  EXPECT_EQ(of("e.w").dtype, "bfloat16");
  EXPECT_EQ(of("h.0.w").dtype, "float8_e4m3fn");
  EXPECT_EQ(tree.module(of("h.0.w").module).class_name, kNoSplitClass);
  EXPECT_EQ(tree.module(of("e.w").module).class_name, "Module");
}

}  // namespace
}  // namespace accelerate::launcher::estimate
