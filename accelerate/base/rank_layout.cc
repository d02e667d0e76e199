#include "accelerate/base/rank_layout.h"

#include <algorithm>
#include <iterator>

#include "absl/log/absl_check.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

using SizeField = int64_t RankLayout::*;

// In the order of MeshAxis, and ep behind them.
constexpr SizeField kSizes[] = {&RankLayout::pp, &RankLayout::dp_replicate, &RankLayout::dp_shard,
                                &RankLayout::cp, &RankLayout::sp,           &RankLayout::tp,
                                &RankLayout::ep};
static_assert(std::size(kSizes) == kNumPlainAxes + 1);
static_assert(static_cast<size_t>(MeshAxis::kEp) == kNumPlainAxes);

struct Technique {
  const char* name;
  bool RankLayout::* field;
};
constexpr Technique kTechniques[] = {{"FSDP", &RankLayout::fsdp},
                                     {"ZeRO", &RankLayout::zero},
                                     {"experts", &RankLayout::experts},
                                     {"sequence shards", &RankLayout::sequence_shards}};

// The ranks along an axis go on as shards, whatever ep is: it divides the larger number, too.
void move_to_shards(RankLayout& layout, SizeField size) {
  layout.dp_shard *= layout.*size;
  layout.*size = 1;
}

// ---- Why not. The texts about cp, and that of FSDP without shards, are HF Accelerate's.

std::string why_not_cp_with_sp(const RankLayout& layout) {
  return absl::StrCat(
      "Context Parallelism (CP) and Sequence Parallelism (SP) are mutually exclusive. Got cp_size=",
      layout.cp, " and sp_size=", layout.sp, ". Please set either cp_size=1 or sp_size=1.");
}

// HF Accelerate refuses tp as well, which its DDP cannot reduce.
std::string why_not_cp_with_replicas(const RankLayout& /*layout*/) {
  return "Tensor/Context parallelism (tp/cp_size > 1) cannot be used with pure data parallelism "
         "(dp_replicate_size > 1 and dp_shard_size == 1). Please set dp_shard_size > 1 and "
         "dp_replicate_size == 1 to compose FSDP + TP/CP for 2D parallel, or set dp_replicate_size "
         "== 1 and dp_shard_size > 1 to compose HSDP + TP/CP for 3D parallel.";
}

std::string why_not_uneven_experts(const RankLayout& layout) {
  return absl::StrCat(
      "ep_size=", layout.ep, " does not divide the ", layout.num_expert_ranks(),
      " ranks of dp_shard_size * cp_size * sp_size, among which experts are divided");
}

std::string why_not_fsdp_with_zero(const RankLayout& /*layout*/) {
  return "fsdp_plugin and deepspeed_plugin both say how ranks divide models; give one of them, and "
         "set one of ACCELERATE_USE_FSDP and ACCELERATE_USE_DEEPSPEED";
}

std::string why_not_fsdp_without_shards(const RankLayout& /*layout*/) {
  return "FSDP is enabled but the parallelism config has no dimension for FSDP to shard across "
         "(both `dp_shard_size` and `cp_size` are 1): set `dp_shard_size` to the number of ranks "
         "that share a model, or leave FSDP off.";
}

template <SizeField kSize>
std::string why_not_zero_with(const RankLayout& layout) {
  return absl::StrCat(
      "deepspeed_plugin: its stage says what ranks divide, so the parallelism_config's ",
      kSize == &RankLayout::ep ? "ep" : "dp_shard", "_size must be 1, but it is ", layout.*kSize);
}

const LayoutRule kRules[] = {
    {.name = "cp with sp",
     .is_broken = [](const RankLayout& it) { return it.cp > 1 && it.sp > 1; },
     .why = &why_not_cp_with_sp,
     .mend =
         [](RankLayout& it) {
           it.cp *= it.sp;
           it.sp = 1;
         },
     .example = {.cp = 2, .sp = 2}},
    {.name = "cp with dp_replicate alone",
     .is_broken =
         [](const RankLayout& it) { return it.cp > 1 && it.dp_replicate > 1 && it.dp_shard == 1; },
     .why = &why_not_cp_with_replicas,
     .mend =
         [](RankLayout& it) {
           if (!it.zero) return move_to_shards(it, &RankLayout::dp_replicate);
           it.dp_replicate *= it.cp;  // ZeRO has no dp_shard
           it.cp = 1;
         },
     .example = {.dp_replicate = 2, .cp = 2}},
    {.name = "ep that does not divide dp_shard x cp x sp",
     .is_broken = [](const RankLayout& it) { return it.num_expert_ranks() % it.ep != 0; },
     .why = &why_not_uneven_experts,
     .mend =
         [](RankLayout& it) {
           it.ep = std::min(it.ep, it.num_expert_ranks());
           while (it.num_expert_ranks() % it.ep != 0) --it.ep;
         },
     .example = {.dp_shard = 4, .ep = 3}},
    {.name = "FSDP without shards",
     .is_broken =
         [](const RankLayout& it) {
           return it.fsdp && it.dp_shard == 1 && it.cp == 1 && it.sp == 1 && it.num_ranks() > 1;
         },
     .why = &why_not_fsdp_without_shards,
     .mend =
         [](RankLayout& it) {
           it.fsdp = it.dp_replicate > 1;
           move_to_shards(it, &RankLayout::dp_replicate);
         },
     .example = {.dp_replicate = 2, .tp = 2, .fsdp = true}},
    {.name = "FSDP with ZeRO",
     .is_broken = [](const RankLayout& it) { return it.fsdp && it.zero; },
     .why = &why_not_fsdp_with_zero,
     .mend = [](RankLayout& it) { it.zero = false; },
     .example = {.dp_shard = 2, .fsdp = true, .zero = true}},
    {.name = "ZeRO with dp_shard",
     .is_broken = [](const RankLayout& it) { return it.zero && it.dp_shard > 1; },
     .why = &why_not_zero_with<&RankLayout::dp_shard>,
     .mend =
         [](RankLayout& it) {
           it.dp_replicate *= it.dp_shard;
           it.dp_shard = it.ep = 1;
         },
     .example = {.dp_shard = 2, .zero = true}},
    {.name = "ZeRO with ep",
     .is_broken = [](const RankLayout& it) { return it.zero && it.ep > 1; },
     .why = &why_not_zero_with<&RankLayout::ep>,
     .mend = [](RankLayout& it) { it.ep = 1; },
     .example = {.cp = 2, .ep = 2, .zero = true}},
};

const LayoutRule* broken_rule(const RankLayout& layout) {
  for (const LayoutRule& rule : kRules) {
    if (rule.is_broken(layout)) return &rule;
  }
  return nullptr;
}

// ---- The page.

// What a row or column of the table of pairs stands for, with what it needs besides.
struct Part {
  const char* name;
  RankLayout layout;
};

const Part kParts[] = {
    {"pp", {.pp = 2}},
    {"dp_replicate", {.dp_replicate = 2}},
    {"dp_shard", {.dp_shard = 2}},
    {"cp", {.cp = 2}},
    {"sp", {.sp = 2}},
    {"tp", {.tp = 2}},
    {"ep", {.dp_shard = 2, .ep = 2, .experts = true}},
    {"FSDP", {.dp_shard = 2, .fsdp = true}},
    {"ZeRO", {.zero = true}},
    {"sequence shards", {.tp = 2, .sequence_shards = true}},
};

size_t number_of(const LayoutRule* rule) {
  return static_cast<size_t>(rule - std::begin(kRules)) + 1;
}

// "yes", or the numbers of the rules that are broken.
std::string cell(const Part& a, const Part& b) {
  RankLayout layout = a.layout;
  for (const SizeField size : kSizes) layout.*size = std::max(layout.*size, b.layout.*size);
  for (const Technique& each : kTechniques) layout.*each.field |= b.layout.*each.field;
  std::vector<size_t> broken;
  for (const LayoutRule& rule : kRules) {
    if (rule.is_broken(layout)) broken.push_back(number_of(&rule));
  }
  return broken.empty() ? "yes" : absl::StrCat("no (", absl::StrJoin(broken, ", "), ")");
}

}  // namespace

std::string RankLayout::text() const {
  std::vector<std::string> axes, others;
  for (size_t i = 0; i < kNumPlainAxes; ++i) {
    const int64_t size = this->*kSizes[i];
    if (size > 1) axes.push_back(absl::StrCat(to_string(static_cast<MeshAxis>(i)), " ", size));
  }
  others.push_back(axes.empty() ? "1 rank" : absl::StrJoin(axes, " x "));
  if (ep > 1) others.push_back(absl::StrCat("ep ", ep));
  for (const Technique& technique : kTechniques) {
    if (this->*technique.field) others.emplace_back(technique.name);
  }
  return absl::StrJoin(others, ", ");
}

int64_t& size_along(RankLayout& layout, MeshAxis axis) {
  const auto index = static_cast<size_t>(axis);
  ABSL_CHECK(index < std::size(kSizes)) << to_string(axis);
  return layout.*kSizes[index];
}

int64_t size_along(const RankLayout& layout, MeshAxis axis) {
  RankLayout copy = layout;
  return size_along(copy, axis);
}

absl::Span<const LayoutRule> layout_rules() { return kRules; }

std::string IllegalLayout::text() const {
  return absl::StrCat(why, absl::EndsWith(why, ".") ? " The" : "; the",
                      " nearest layout that works: ", nearest.text());
}

std::optional<IllegalLayout> find_illegal(const RankLayout& layout) {
  const LayoutRule* const rule = broken_rule(layout);
  if (rule == nullptr) return std::nullopt;
  IllegalLayout illegal{.rule = rule, .why = rule->why(layout), .nearest = layout};
  // Each turn takes an axis or a technique away, or a remainder.
  while (const LayoutRule* const next = broken_rule(illegal.nearest)) {
    next->mend(illegal.nearest);
  }
  return illegal;
}

std::vector<RankLayout> legal_layouts(int64_t ranks, const RankLayout& like) {
  std::vector<RankLayout> found;
  RankLayout layout{.fsdp = like.fsdp,
                    .zero = like.zero,
                    .experts = like.experts,
                    .sequence_shards = like.sequence_shards};
  const auto take_experts = [&] {
    for (int64_t ep = 1; ep <= (like.experts ? layout.num_expert_ranks() : 1); ++ep) {
      layout.ep = ep;
      if (!find_illegal(layout)) found.push_back(layout);
    }
    layout.ep = 1;
  };
  const auto divide = [&](const auto& self, size_t axis, int64_t left) -> void {
    if (axis + 1 == kNumPlainAxes) {
      layout.*kSizes[axis] = left;
      return take_experts();
    }
    for (int64_t size = 1; size <= left; ++size) {
      if (left % size != 0) continue;
      layout.*kSizes[axis] = size;
      self(self, axis + 1, left / size);
    }
    layout.*kSizes[axis] = 1;
  };
  divide(divide, 0, ranks);
  return found;
}

std::string layouts_markdown() {
  std::string page =
      "# Reference: layouts\n\n"
      "Use this when you combine axes and techniques, and want to know which combinations work."
      "\n\n"
      "Which axes of a [mesh](parallelism.md) and which techniques a job may have together. Sizes, "
      "accumulation, precision\nand recomputation are free, but for MS-AMP's fp8, which takes no "
      "shards but those of ZeRO's stages 1 and 2. The\nlibrary, `accelerate launch` and this page "
      "read one table (`accelerate/base/rank_layout.h`);\n`accelerate plan --layouts_markdown` "
      "prints the page.\n\n"
      "Numbers are those of the rules below that are broken if a job has only these two. A larger "
      "product is legal if it\nbreaks none of the rules.\n\n";
  absl::StrAppend(&page, "| |");
  for (const Part& part : kParts) absl::StrAppend(&page, " ", part.name, " |");
  absl::StrAppend(&page, "\n| --- |");
  for (size_t i = 0; i < std::size(kParts); ++i) absl::StrAppend(&page, " --- |");
  for (const Part& row : kParts) {
    absl::StrAppend(&page, "\n| ", row.name, " |");
    for (const Part& column : kParts) absl::StrAppend(&page, " ", cell(row, column), " |");
  }
  absl::StrAppend(&page,
                  "\n\n`ep` stands with a `dp_shard` that it divides and a model with experts, "
                  "FSDP with its shards, sequence shards with their `tp`.\n\n"
                  "| | what is refused | an example is told | and the nearest layout |\n"
                  "| --- | --- | --- | --- |\n");
  for (const LayoutRule& rule : kRules) {
    const std::optional<IllegalLayout> illegal = find_illegal(rule.example);
    absl::StrAppend(&page, "| ", number_of(&rule), " | ", rule.name, " | ", illegal->why, " | ",
                    illegal->nearest.text(), " |\n");
  }
  absl::StrAppend(
      &page,
      "\nA size that a model does not allow, as a `tp` that does not divide its heads or "
      "an `ep` that does not divide its experts, is refused when\nthe model is prepared, "
      "with the nearest size.\n\n"
      "Rule 2's text is HF Accelerate's and names `tp` too, which may stand with `dp_replicate` "
      "alone here. Rule 4 is about\nversion 2 of FSDP (`--fsdp_version 2`). By flags rule 5 says "
      "`--use_deepspeed and --use_fsdp exclude each other`.\n");
  return page;
}

}  // namespace accelerate
