/// Which products of axes and techniques a job may have: one table for the Accelerator, for the
/// launcher and for the page accelerate/docs/layouts.md, which is layouts_markdown().
///
///   find_illegal({.dp_replicate = 2, .cp = 2})->text()
///   // "... The nearest layout that works: dp_shard 2 x cp 2"
///
/// Units:   sizes are numbers of ranks, at least 1, whose product is an int.
/// Errors:  none.
/// Threads: values; pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "accelerate/base/mesh_axis.h"

namespace accelerate {

/// How the ranks of a job are arranged, and what else divides its model.
struct RankLayout {
  int64_t pp = 1;
  int64_t dp_replicate = 1;
  int64_t dp_shard = 1;
  int64_t cp = 1;
  int64_t sp = 1;
  int64_t tp = 1;
  int64_t ep = 1;  ///< divides dp_shard * cp * sp
  /// An fsdp_plugin divides the model.
  bool fsdp = false;
  /// A deepspeed_plugin divides it, or its optimizer.
  bool zero = false;
  /// Some layers of the model are mixtures of experts.
  bool experts = false;
  /// The plan of tp leaves each rank a part of every sequence.
  bool sequence_shards = false;

  int64_t num_ranks() const { return pp * dp_replicate * dp_shard * cp * sp * tp; }
  /// Ranks along dp_shard_cp_sp, which ep arranges once more.
  int64_t num_expert_ranks() const { return dp_shard * cp * sp; }

  /// "dp_shard 4 x tp 2, ep 2, ZeRO", outermost axis first; "1 rank" without axes.
  std::string text() const;

  bool operator==(const RankLayout&) const = default;
};

/// The size of a layout along one of the axes that divide ranks, or along ep.
/// \pre The axis is one of these seven.
int64_t& size_along(RankLayout& layout, MeshAxis axis);
int64_t size_along(const RankLayout& layout, MeshAxis axis);

/// One kind of layouts that a job cannot have.
struct LayoutRule {
  /// "cp with sp"
  const char* name;
  bool (*is_broken)(const RankLayout& layout);
  /// Why not, in one sentence or more. \pre The layout is broken.
  std::string (*why)(const RankLayout& layout);
  /// Makes it the nearest layout that keeps this rule, of as many ranks.
  void (*mend)(RankLayout& layout);
  /// A small layout that only this rule forbids.
  RankLayout example;
};

/// All rules; of several that a layout breaks the first is told.
absl::Span<const LayoutRule> layout_rules();

/// A layout that a job cannot have.
struct IllegalLayout {
  const LayoutRule* rule;
  std::string why;
  /// It has as many ranks, and is legal by all rules.
  RankLayout nearest;

  /// Why, and the nearest layout.
  std::string text() const;
};

/// The first rule that the layout breaks. Nothing: the job may have the layout.
std::optional<IllegalLayout> find_illegal(const RankLayout& layout);

/// The legal layouts of so many ranks, whose techniques are those of `like`: its sizes do not
/// count. ep is above 1 only where `like` has experts. In a fixed order.
std::vector<RankLayout> legal_layouts(int64_t ranks, const RankLayout& like = {});

/// Which axes and techniques go together, pair by pair, and all rules, in Markdown: the page
/// accelerate/docs/layouts.md.
std::string layouts_markdown();

}  // namespace accelerate
