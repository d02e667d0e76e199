#include "accelerate/base/rank_layout.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr MeshAxis kAxes[] = {MeshAxis::kPp, MeshAxis::kDpReplicate, MeshAxis::kDpShard,
                              MeshAxis::kCp, MeshAxis::kSp,          MeshAxis::kTp,
                              MeshAxis::kEp};

// Each axis with one rank or two, and each technique off and on.
std::vector<RankLayout> all_products() {
  std::vector<RankLayout> all;
  for (int bits = 0; bits < 1 << 11; ++bits) {
    RankLayout& layout = all.emplace_back();
    for (int axis = 0; axis < 7; ++axis) size_along(layout, kAxes[axis]) = 1 + (bits >> axis & 1);
    layout.fsdp = (bits >> 7 & 1) != 0;
    layout.zero = (bits >> 8 & 1) != 0;
    layout.experts = (bits >> 9 & 1) != 0;
    layout.sequence_shards = (bits >> 10 & 1) != 0;
  }
  return all;
}

TEST(RankLayout, OfEachIllegalProductNamesALegalOneOfAsManyRanks) {
  std::set<const LayoutRule*> told;
  for (const RankLayout& layout : all_products()) {
    SCOPED_TRACE(layout.text());
    const auto illegal = find_illegal(layout);
    if (!illegal) continue;
    told.insert(illegal->rule);
    EXPECT_TRUE(illegal->rule->is_broken(layout));
    EXPECT_FALSE(find_illegal(illegal->nearest)) << illegal->nearest.text();
    EXPECT_EQ(illegal->nearest.num_ranks(), layout.num_ranks());
    EXPECT_EQ(illegal->nearest.experts, layout.experts) << "a model does not change";
    EXPECT_THAT(illegal->text(), StartsWith(illegal->why));
    EXPECT_THAT(illegal->text(),
                HasSubstr("nearest layout that works: " + illegal->nearest.text()));
  }
  EXPECT_EQ(told.size(), layout_rules().size()) << "a rule that no product breaks";
}

// By hand, beside the rules.
TEST(RankLayout, HasTheseLegalProductsOfAxes) {
  std::vector<std::string> legal;
  for (const RankLayout& layout : all_products()) {
    const bool has_technique = layout.fsdp || layout.zero || layout.sequence_shards;
    if (!has_technique && layout.experts && !find_illegal(layout)) legal.push_back(layout.text());
  }
  EXPECT_THAT(
      legal, ElementsAreArray({"1 rank, experts",
                               "pp 2, experts",
                               "dp_replicate 2, experts",
                               "pp 2 x dp_replicate 2, experts",
                               "dp_shard 2, experts",
                               "pp 2 x dp_shard 2, experts",
                               "dp_replicate 2 x dp_shard 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2, experts",
                               "cp 2, experts",
                               "pp 2 x cp 2, experts",
                               "dp_shard 2 x cp 2, experts",
                               "pp 2 x dp_shard 2 x cp 2, experts",
                               "dp_replicate 2 x dp_shard 2 x cp 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2 x cp 2, experts",
                               "sp 2, experts",
                               "pp 2 x sp 2, experts",
                               "dp_replicate 2 x sp 2, experts",
                               "pp 2 x dp_replicate 2 x sp 2, experts",
                               "dp_shard 2 x sp 2, experts",
                               "pp 2 x dp_shard 2 x sp 2, experts",
                               "dp_replicate 2 x dp_shard 2 x sp 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2 x sp 2, experts",
                               "tp 2, experts",
                               "pp 2 x tp 2, experts",
                               "dp_replicate 2 x tp 2, experts",
                               "pp 2 x dp_replicate 2 x tp 2, experts",
                               "dp_shard 2 x tp 2, experts",
                               "pp 2 x dp_shard 2 x tp 2, experts",
                               "dp_replicate 2 x dp_shard 2 x tp 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2 x tp 2, experts",
                               "cp 2 x tp 2, experts",
                               "pp 2 x cp 2 x tp 2, experts",
                               "dp_shard 2 x cp 2 x tp 2, experts",
                               "pp 2 x dp_shard 2 x cp 2 x tp 2, experts",
                               "dp_replicate 2 x dp_shard 2 x cp 2 x tp 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2 x cp 2 x tp 2, experts",
                               "sp 2 x tp 2, experts",
                               "pp 2 x sp 2 x tp 2, experts",
                               "dp_replicate 2 x sp 2 x tp 2, experts",
                               "pp 2 x dp_replicate 2 x sp 2 x tp 2, experts",
                               "dp_shard 2 x sp 2 x tp 2, experts",
                               "pp 2 x dp_shard 2 x sp 2 x tp 2, experts",
                               "dp_replicate 2 x dp_shard 2 x sp 2 x tp 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2 x sp 2 x tp 2, experts",
                               "dp_shard 2, ep 2, experts",
                               "pp 2 x dp_shard 2, ep 2, experts",
                               "dp_replicate 2 x dp_shard 2, ep 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2, ep 2, experts",
                               "cp 2, ep 2, experts",
                               "pp 2 x cp 2, ep 2, experts",
                               "dp_shard 2 x cp 2, ep 2, experts",
                               "pp 2 x dp_shard 2 x cp 2, ep 2, experts",
                               "dp_replicate 2 x dp_shard 2 x cp 2, ep 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2 x cp 2, ep 2, experts",
                               "sp 2, ep 2, experts",
                               "pp 2 x sp 2, ep 2, experts",
                               "dp_replicate 2 x sp 2, ep 2, experts",
                               "pp 2 x dp_replicate 2 x sp 2, ep 2, experts",
                               "dp_shard 2 x sp 2, ep 2, experts",
                               "pp 2 x dp_shard 2 x sp 2, ep 2, experts",
                               "dp_replicate 2 x dp_shard 2 x sp 2, ep 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2 x sp 2, ep 2, experts",
                               "dp_shard 2 x tp 2, ep 2, experts",
                               "pp 2 x dp_shard 2 x tp 2, ep 2, experts",
                               "dp_replicate 2 x dp_shard 2 x tp 2, ep 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2 x tp 2, ep 2, experts",
                               "cp 2 x tp 2, ep 2, experts",
                               "pp 2 x cp 2 x tp 2, ep 2, experts",
                               "dp_shard 2 x cp 2 x tp 2, ep 2, experts",
                               "pp 2 x dp_shard 2 x cp 2 x tp 2, ep 2, experts",
                               "dp_replicate 2 x dp_shard 2 x cp 2 x tp 2, ep 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2 x cp 2 x tp 2, ep 2, experts",
                               "sp 2 x tp 2, ep 2, experts",
                               "pp 2 x sp 2 x tp 2, ep 2, experts",
                               "dp_replicate 2 x sp 2 x tp 2, ep 2, experts",
                               "pp 2 x dp_replicate 2 x sp 2 x tp 2, ep 2, experts",
                               "dp_shard 2 x sp 2 x tp 2, ep 2, experts",
                               "pp 2 x dp_shard 2 x sp 2 x tp 2, ep 2, experts",
                               "dp_replicate 2 x dp_shard 2 x sp 2 x tp 2, ep 2, experts",
                               "pp 2 x dp_replicate 2 x dp_shard 2 x sp 2 x tp 2, ep 2, experts"}));
}

TEST(RankLayout, HasAnExampleOfEachRuleThatBreaksIt) {
  for (const LayoutRule& rule : layout_rules()) {
    SCOPED_TRACE(rule.name);
    const auto illegal = find_illegal(rule.example);
    ASSERT_TRUE(illegal);
    EXPECT_EQ(illegal->rule, &rule);
    RankLayout mended = rule.example;
    rule.mend(mended);
    EXPECT_FALSE(rule.is_broken(mended)) << mended.text();
  }
}

// Ranks with parts of sequences divide rows as well.
TEST(RankLayout, OfFsdpHasShardsAlongAnyOfThreeAxes) {
  EXPECT_FALSE(find_illegal({.dp_shard = 2, .fsdp = true}));
  EXPECT_FALSE(find_illegal({.cp = 2, .fsdp = true}));
  EXPECT_FALSE(find_illegal({.sp = 2, .fsdp = true}));
  EXPECT_FALSE(find_illegal({.dp_replicate = 2, .sp = 2, .fsdp = true}));
  EXPECT_TRUE(find_illegal({.pp = 2, .dp_replicate = 2, .tp = 2, .fsdp = true}));
}

TEST(RankLayout, OfExpertsTakesTheLargestNumberThatDivides) {
  EXPECT_EQ(find_illegal({.dp_shard = 12, .ep = 8})->nearest,
            (RankLayout{.dp_shard = 12, .ep = 6}));
  EXPECT_EQ(find_illegal({.dp_shard = 7, .ep = 100})->nearest,
            (RankLayout{.dp_shard = 7, .ep = 7}));
  EXPECT_EQ(find_illegal({.dp_shard = 2, .cp = 3, .ep = 5})->nearest,
            (RankLayout{.dp_shard = 2, .cp = 3, .ep = 3}));
  EXPECT_FALSE(find_illegal({.dp_shard = 2, .sp = 4, .ep = 8}));
}

TEST(LegalLayouts, AreAllOfThatManyRanks) {
  std::vector<std::string> texts;
  for (const RankLayout& layout : legal_layouts(8)) texts.push_back(layout.text());
  EXPECT_THAT(texts, ElementsAreArray({"tp 8",
                                       "sp 2 x tp 4",
                                       "sp 4 x tp 2",
                                       "sp 8",
                                       "cp 2 x tp 4",
                                       "cp 4 x tp 2",
                                       "cp 8",
                                       "dp_shard 2 x tp 4",
                                       "dp_shard 2 x sp 2 x tp 2",
                                       "dp_shard 2 x sp 4",
                                       "dp_shard 2 x cp 2 x tp 2",
                                       "dp_shard 2 x cp 4",
                                       "dp_shard 4 x tp 2",
                                       "dp_shard 4 x sp 2",
                                       "dp_shard 4 x cp 2",
                                       "dp_shard 8",
                                       "dp_replicate 2 x tp 4",
                                       "dp_replicate 2 x sp 2 x tp 2",
                                       "dp_replicate 2 x sp 4",
                                       "dp_replicate 2 x dp_shard 2 x tp 2",
                                       "dp_replicate 2 x dp_shard 2 x sp 2",
                                       "dp_replicate 2 x dp_shard 2 x cp 2",
                                       "dp_replicate 2 x dp_shard 4",
                                       "dp_replicate 4 x tp 2",
                                       "dp_replicate 4 x sp 2",
                                       "dp_replicate 4 x dp_shard 2",
                                       "dp_replicate 8",
                                       "pp 2 x tp 4",
                                       "pp 2 x sp 2 x tp 2",
                                       "pp 2 x sp 4",
                                       "pp 2 x cp 2 x tp 2",
                                       "pp 2 x cp 4",
                                       "pp 2 x dp_shard 2 x tp 2",
                                       "pp 2 x dp_shard 2 x sp 2",
                                       "pp 2 x dp_shard 2 x cp 2",
                                       "pp 2 x dp_shard 4",
                                       "pp 2 x dp_replicate 2 x tp 2",
                                       "pp 2 x dp_replicate 2 x sp 2",
                                       "pp 2 x dp_replicate 2 x dp_shard 2",
                                       "pp 2 x dp_replicate 4",
                                       "pp 4 x tp 2",
                                       "pp 4 x sp 2",
                                       "pp 4 x cp 2",
                                       "pp 4 x dp_shard 2",
                                       "pp 4 x dp_replicate 2",
                                       "pp 8"}));
  EXPECT_EQ(legal_layouts(8, {.experts = true}).size(), 110) << "each with the ep that divide";
  EXPECT_EQ(legal_layouts(8, {.zero = true, .experts = true}).size(), 26)
      << "without dp_shard and ep";
  for (const RankLayout& layout : legal_layouts(12, {.fsdp = true, .experts = true})) {
    EXPECT_EQ(layout.num_ranks(), 12);
    EXPECT_GT(layout.dp_shard * layout.cp * layout.sp, 1) << layout.text();
    EXPECT_EQ(layout.num_expert_ranks() % layout.ep, 0) << layout.text();
  }
  EXPECT_EQ(legal_layouts(1).size(), 1);
}

TEST(LayoutsMarkdown, IsThePage) {
  std::ifstream file(std::getenv("ACCELERATE_LAYOUTS_PAGE"));
  ASSERT_TRUE(file);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), layouts_markdown())
      << "make it anew: accelerate plan --layouts_markdown >accelerate/docs/layouts.md";
}

}  // namespace
}  // namespace accelerate
