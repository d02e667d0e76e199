#include "accelerate/pipeline/schedule_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/document.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"
#include "accelerate/pipeline/check.h"

namespace accelerate::pipeline {
namespace {

constexpr char kExpectedAction[] =
    "an action such as 0F2 (stage, F, B, I or W, micro-batch), or F2 for the rank's own stage";

// Whether each rank has one stage, of its own number.
bool stages_are_ranks(const Schedule& schedule) {
  std::vector<int> ranks(schedule.ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return stage_ranks(schedule) == ranks;
}

// Puts the actions of ranks at columns that are in proportion to their times.
class Drawing {
 public:
  Drawing(const Schedule& schedule, const ScheduleTimes& times, size_t columns)
      : schedule_(schedule),
        times_(times),
        columns_(columns),
        has_stages_(!stages_are_ranks(schedule)) {
    size_t width = 0;
    int64_t shortest = std::numeric_limits<int64_t>::max();
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (const Action& action : schedule.ranks[rank]) {
        width = std::max(width, name(action).size() + 1);
      }
      for (const auto& [start, end] : times.ranks[rank]) {
        if (end > start) shortest = std::min(shortest, end - start);
      }
    }
    per_ns_ = static_cast<double>(width) / static_cast<double>(shortest);
  }

  std::string line(size_t rank, std::string text) const {
    const size_t offset = text.size();
    for (size_t i = 0; i < schedule_.ranks[rank].size() && text.size() <= columns_; ++i) {
      const ScheduleTimes::Span& span = times_.ranks[rank][i];
      wait_until(span.start_ns, offset, text);
      absl::StrAppend(&text, name(schedule_.ranks[rank][i]), " ");
      text.resize(std::max(text.size(), column(span.end_ns, offset)), ' ');
    }
    wait_until(times_.makespan_ns, offset, text);
    absl::StripTrailingAsciiWhitespace(&text);
    if (text.size() <= columns_) return text;
    constexpr absl::string_view kCut = " >";
    text.resize(columns_ - std::min(columns_, kCut.size()));
    return absl::StrCat(text, kCut);
  }

 private:
  std::string name(const Action& action) const {
    const std::string text = action_text(action);
    return has_stages_ ? text : text.substr(text.find(to_string(action.pass)));
  }

  // As far as anything is drawn.
  size_t column(int64_t ns, size_t offset) const {
    const double column = std::round(static_cast<double>(ns) * per_ns_);
    return offset + static_cast<size_t>(std::min(column, static_cast<double>(columns_)));
  }

  void wait_until(int64_t ns, size_t offset, std::string& text) const {
    const size_t end = column(ns, offset);
    if (end <= text.size() + 1) return;
    text.resize(end - 1, '.');
    text.push_back(' ');
  }

  const Schedule& schedule_;
  const ScheduleTimes& times_;
  const size_t columns_;
  const bool has_stages_;
  double per_ns_ = 0;
};

std::string percent_text(double share) { return absl::StrFormat("bubble %.1f %%", 100 * share); }

std::string counted(size_t count, absl::string_view what, absl::string_view plural) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : plural);
}

std::optional<Action> parse_action(absl::string_view text, size_t rank) {
  const size_t letter = text.find_first_not_of("0123456789");
  if (letter == text.npos) return std::nullopt;
  const int pass = accelerate::internal::index_of_text<Pass>({&text[letter], 1});
  int stage = static_cast<int>(rank);
  int micro_batch = 0;
  const absl::string_view number = text.substr(letter + 1);
  if (pass < 0 || number.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(number[0])) ||
      (letter > 0 && !absl::SimpleAtoi(text.substr(0, letter), &stage)) ||
      !absl::SimpleAtoi(number, &micro_batch)) {
    return std::nullopt;
  }
  return Action{static_cast<Pass>(pass), stage, micro_batch};
}

// The cells of a line, without empty ones.
std::vector<absl::string_view> cells(absl::string_view line) {
  return absl::StrSplit(line, absl::ByAnyChar(", \t\r"), absl::SkipEmpty());
}

absl::StatusOr<Schedule> checked(std::vector<std::vector<Action>> ranks, absl::string_view name) {
  // The check refuses the largest number, which has no number after it.
  constexpr int kMost = std::numeric_limits<int>::max() - 1;
  Schedule schedule;
  for (const std::vector<Action>& actions : ranks) {
    for (const Action& action : actions) {
      schedule.stages = std::max(schedule.stages, std::min(action.stage, kMost) + 1);
      schedule.micro_batches =
          std::max(schedule.micro_batches, std::min(action.micro_batch, kMost) + 1);
    }
  }
  schedule.ranks = std::move(ranks);
  ACCELERATE_RETURN_IF_ERROR(in_file(name, check_schedule(schedule)));
  return schedule;
}

absl::StatusOr<Schedule> parse_table(absl::string_view text, absl::string_view name) {
  std::vector<std::vector<Action>> ranks;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const std::vector<absl::string_view> words = cells(line);
    if (words.empty() || absl::StartsWith(words.front(), "#")) continue;
    std::vector<Action> actions;
    for (const absl::string_view word : words) {
      const std::optional<Action> action = parse_action(word, ranks.size());
      if (!action) {
        return invalid(name, ":", number, ": expected ", kExpectedAction, ", found ",
                       excerpt_of(std::string(word)));
      }
      actions.push_back(*action);
    }
    ranks.push_back(std::move(actions));
  }
  return checked(std::move(ranks), name);
}

// The actions in a text of a document.
void add_actions(const DocumentNode& node, size_t rank, std::vector<Action>& actions) {
  for (const absl::string_view word : cells(node.text(kExpectedAction))) {
    const std::optional<Action> action = parse_action(word, rank);
    if (!action) node.fail(kExpectedAction);
    actions.push_back(*action);
  }
}

absl::StatusOr<Schedule> parse_document(const Document& document, absl::string_view name) {
  const DocumentNode root = document.root();
  root.check_keys({"ranks"});
  std::vector<std::vector<Action>> ranks;
  for (const DocumentNode& line :
       root.at("ranks", "a list with the actions of each rank").items()) {
    std::vector<Action> actions;
    if (line.value().is_string()) {
      add_actions(line, ranks.size(), actions);
    } else {
      for (const DocumentNode& cell : line.items("the actions of a rank, as a text or a list")) {
        add_actions(cell, ranks.size(), actions);
      }
    }
    ranks.push_back(std::move(actions));
  }
  return checked(std::move(ranks), name);
}

}  // namespace

std::string schedule_text(const Schedule& schedule, const ScheduleTimes& times,
                          const ScheduleTextOptions& options) {
  const Drawing drawing(schedule, times, static_cast<size_t>(std::max(options.columns, 0)));
  const std::vector<int64_t> in_flight = most_in_flight(schedule);
  const std::vector<int64_t> bytes = most_in_flight(schedule, options.stage_bytes);
  std::string text =
      absl::StrCat(counted(schedule.ranks.size(), "rank", "s"), ", ",
                   counted(static_cast<size_t>(schedule.stages), "stage", "s"), ", ",
                   counted(static_cast<size_t>(schedule.micro_batches), "micro-batch", "es"), ": ",
                   percent_text(times.bubble_share()), "\n");
  std::vector<std::string> heads;
  size_t width = 0;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::string head =
        absl::StrCat("rank ", rank, " (", percent_text(times.bubble_share(static_cast<int>(rank))),
                     ", ", in_flight[rank], " in flight");
    if (!options.stage_bytes.empty()) {
      absl::StrAppend(&head, ", ", binary_byte_text(bytes[rank]));
    }
    heads.push_back(absl::StrCat(head, "): "));
    width = std::max(width, heads.back().size());
  }
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    heads[rank].resize(width, ' ');
    absl::StrAppend(&text, drawing.line(rank, std::move(heads[rank])), "\n");
  }
  return text;
}

std::string schedule_table(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& actions : schedule.ranks) {
    absl::StrAppend(&text,
                    absl::StrJoin(actions, " ",
                                  [](std::string* out, const Action& action) {
                                    absl::StrAppend(out, action_text(action));
                                  }),
                    "\n");
  }
  return text;
}

absl::StatusOr<Schedule> parse_schedule(absl::string_view text, absl::string_view name) {
  const bool is_json = absl::EndsWith(name, ".json");
  if (!is_json && !absl::EndsWith(name, ".yaml") && !absl::EndsWith(name, ".yml")) {
    return parse_table(text, name);
  }
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<Schedule> {
    const DocumentOptions options = {.name = std::string(name)};
    return parse_document(is_json ? Document::json(text, options) : Document::yaml(text, options),
                          name);
  });
}

}  // namespace accelerate::pipeline
