#include "accelerate/parallel/residency/step_comparison.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/comm/objects.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

// An action is one of these and a group's number, or none where that ends; behind a reduction's are
// the marks of the group's parameters.
constexpr char kUses = 'u', kReduces = 'r';

constexpr char kSameOrder[] =
    "; a step must use the same parameters in the same order on all ranks";

std::string action(char kind, int group) {
  return group == UseTrace::kNone ? std::string(1, kind)
                                  : absl::StrCat(absl::string_view(&kind, 1), group);
}

std::string reduction(int group, StepComparison::MarksOf marks) {
  if (group == UseTrace::kNone) return action(kReduces, group);
  return absl::StrCat(action(kReduces, group), " ", marks(group));
}

int group_of(absl::string_view action) {
  int group = UseTrace::kNone;
  action.remove_prefix(1);
  return absl::SimpleAtoi(action.substr(0, action.find(' ')), &group) ? group : UseTrace::kNone;
}

bool is_reduction_of_group(absl::string_view action) {
  return action.front() == kReduces && group_of(action) != UseTrace::kNone;
}

absl::string_view marks_of(absl::string_view action) { return action.substr(action.find(' ') + 1); }

bool has_some(absl::string_view action) {
  return marks_of(action).find(static_cast<char>(GradientPresence::kHas)) !=
         absl::string_view::npos;
}

std::vector<std::string> actions_of(const std::string& text) {
  return absl::StrSplit(text, ',', absl::SkipEmpty());
}

template <typename Sayings>
auto first_other(const Sayings& sayings) {
  return std::ranges::find_if(sayings,
                              [&](const auto& each) { return each.text != sayings.front().text; });
}

}  // namespace

std::string text_of_parameters(const std::string& first, const std::string& last) {
  const std::string begin = absl::StrCat("parameters \"", first, "\"");
  return first == last ? begin : absl::StrCat(begin, " to \"", last, "\"");
}

std::vector<StepComparison::RankReport> StepComparison::exchange(std::string text,
                                                                 bool with_replicas) const {
  const Runtime* runtime = Runtime::find_current();
  const int rank = runtime == nullptr ? rank_of(shards_) : runtime->topology().rank;
  std::vector<std::string> all =
      gather_object(shards_, std::vector<std::string>{absl::StrCat(rank), std::move(text)});
  if (with_replicas) all = gather_object(replicas_, std::move(all));
  std::vector<RankReport> sayings;
  for (size_t i = 0; i + 1 < all.size(); i += 2) {
    sayings.push_back({std::move(all[i]), std::move(all[i + 1])});
  }
  return sayings;
}

std::string StepComparison::text_of_group(int group) const {
  return text_of_parameters(groups_.at(group).front(), groups_.at(group).back());
}

// As in "rank 1 used parameters "a" to "b"".
std::string StepComparison::text_of_action(const RankReport& saying) const {
  const int group = group_of(saying.text);
  const bool uses = saying.text.front() == kUses;
  const std::string rank = absl::StrCat("rank ", saying.rank);
  if (group == UseTrace::kNone) {
    return absl::StrCat(rank, uses ? " used no more" : " has no more gradients");
  }
  return absl::StrCat(rank, uses ? " used " : " has gradients of ", text_of_group(group));
}

void StepComparison::check_same_action(const RankReport& first, const RankReport& other) const {
  TORCH_CHECK(first.text == other.text,
              "ranks that share parameters did different things in one step: ",
              text_of_action(first), ", and ", text_of_action(other), kSameOrder);
}

// Both are reductions of one group.
void StepComparison::check_same_marks(const RankReport& first, const RankReport& other) const {
  const absl::string_view marks = marks_of(first.text), others = marks_of(other.text);
  const size_t at = std::ranges::mismatch(marks, others).in1 - marks.begin();
  if (at == marks.size()) return;
  const auto text_of = [](const RankReport& saying, char mark) {
    const auto value = static_cast<GradientPresence>(mark);
    return absl::StrCat("rank ", saying.rank,
                        value == GradientPresence::kHas     ? " has one"
                        : value == GradientPresence::kLacks ? " has none"
                                                            : " does not train it");
  };
  TORCH_CHECK(false, "ranks that share parameters differ in the gradient of parameter \"",
              groups_.at(group_of(first.text)).at(at), "\": ", text_of(first, marks[at]), ", and ",
              text_of(other, others[at]),
              "; a step must use and train the same parameters on all ranks");
}

void StepComparison::compare_use(int group) const {
  const std::vector<RankReport> all = exchange(action(kUses, group), /*with_replicas=*/false);
  for (const RankReport& each : all) check_same_action(all.front(), each);
}

void StepComparison::compare_reduction(int group, MarksOf marks) const {
  const std::vector<RankReport> all = exchange(reduction(group, marks), /*with_replicas=*/true);
  const auto other = first_other(all);
  if (other == all.end()) return;
  // A rank that lacks a gradient of a group reduces another one meanwhile: all say what they have
  // of both.
  if (is_reduction_of_group(all.front().text) && is_reduction_of_group(other->text)) {
    const int first_group = group_of(all.front().text), other_group = group_of(other->text);
    const std::vector<RankReport> both =
        exchange(absl::StrCat(reduction(first_group, marks), ",", reduction(other_group, marks)),
                 /*with_replicas=*/true);
    const auto of_first = actions_of(both.front().text);
    const auto of_other = actions_of(both[other - all.begin()].text);
    for (size_t i = 0; i < 2; ++i) {
      if (!has_some(of_first[i]) || !has_some(of_other[i])) continue;
      check_same_marks({all.front().rank, of_first[i]}, {other->rank, of_other[i]});
    }
  }
  check_same_action(all.front(), *other);
}

void StepComparison::compare_steps(UseTrace& trains, UseTrace& evaluates, UseTrace& reductions,
                                   MarksOf marks) const {
  const std::vector<RankReport> all =
      exchange(absl::StrCat(trains.history(), " ", reductions.history()), /*with_replicas=*/true);
  const auto other = first_other(all);
  // Replicas may evaluate differently.
  const std::vector<RankReport> evaluations =
      exchange(absl::StrCat(evaluates.history()), /*with_replicas=*/false);
  const auto other_evaluation = first_other(evaluations);
  if (other == all.end() && other_evaluation == evaluations.end()) {
    for (UseTrace* each : {&trains, &evaluates, &reductions}) each->mark_compared();
    return;
  }
  std::string uses, sums;
  for (const int group : trains.uses()) absl::StrAppend(&uses, action(kUses, group), ",");
  for (const int group : reductions.uses()) absl::StrAppend(&sums, reduction(group, marks), ",");
  for (UseTrace* each : {&trains, &evaluates, &reductions}) *each = UseTrace();
  if (other != all.end()) {
    const size_t index = other - all.begin();
    const auto check_each = [&](const std::string& own, char kind, bool same_groups) {
      const std::vector<RankReport> ranks = exchange(own, /*with_replicas=*/true);
      const RankReport &a = ranks.front(), &b = ranks[index];
      std::vector<std::string> first = actions_of(a.text), second = actions_of(b.text);
      if (same_groups) {
        for (const std::string& each : first) {
          const auto same = std::ranges::find(second, group_of(each), &group_of);
          if (same != second.end()) check_same_marks({a.rank, each}, {b.rank, *same});
        }
      }
      first.resize(std::max(first.size(), second.size()), action(kind, UseTrace::kNone));
      second.resize(first.size(), action(kind, UseTrace::kNone));
      for (size_t i = 0; i < first.size(); ++i) {
        check_same_action({a.rank, first[i]}, {b.rank, second[i]});
      }
    };
    check_each(uses, kUses, /*same_groups=*/false);
    check_each(sums, kReduces, /*same_groups=*/true);
  }
  const bool trained = other != all.end();
  TORCH_CHECK(false, "ranks that share parameters did different things in a pass before this one",
              trained ? "" : ", without gradients", ": rank ",
              trained ? other->rank : other_evaluation->rank, " used other parameters than rank ",
              trained ? all.front().rank : evaluations.front().rank, ", or in another order",
              kSameOrder);
}

}  // namespace accelerate
