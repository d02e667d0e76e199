#include "accelerate/comm/rank_endings.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/comm/objects.h"
#include "accelerate/values/exception_text.h"

namespace accelerate::internal {

RankEnding ending_of(const std::function<std::string()>& body) {
  try {
    return {.text = body()};
  } catch (const CheckpointError& error) {
    return {error.is_damage() ? Ending::kDamaged : Ending::kUnreachable, exception_text(error),
            std::current_exception()};
  } catch (...) {
    return {Ending::kFailed, exception_text(), std::current_exception()};
  }
}

std::vector<RankEnding> exchange_endings(const ProcessGroupPtr& group, const std::string& what,
                                         const RankEnding& own) {
  if (!group) return {own};
  std::vector<RankEnding> all;
  std::string elsewhere;
  for (const std::string& bytes : all_gather_bytes(
           group,
           absl::StrCat(what, "\n", std::string(1, static_cast<char>(own.ending)), own.text))) {
    const size_t end = bytes.find('\n');
    const std::string theirs = bytes.substr(0, end);
    if (theirs != what) {
      absl::StrAppend(&elsewhere, elsewhere.empty() ? "" : ", ", "rank ", all.size(), " is in ",
                      theirs);
      all.emplace_back();
      continue;
    }
    all.push_back(
        {.ending = static_cast<Ending>(bytes.at(end + 1)), .text = bytes.substr(end + 2)});
  }
  TORCH_CHECK_VALUE(elsewhere.empty(), what, ", rank ", group->getRank(), ": ", elsewhere);
  return all;
}

std::string failures(const std::vector<RankEnding>& endings) {
  std::string text;
  for (size_t rank = 0; rank < endings.size(); ++rank) {
    if (endings[rank].ending == Ending::kWell) continue;
    absl::StrAppend(&text, text.empty() ? "" : "\n", "rank ", rank, ": ", endings[rank].text);
  }
  return text;
}

bool any(const std::vector<RankEnding>& endings, Ending ending) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](const RankEnding& each) { return each.ending == ending; });
}

void throw_failures(const std::vector<RankEnding>& endings, const std::string& what,
                    const RankEnding& own) {
  const std::string failed = failures(endings);
  if (failed.empty()) return;
  // One rank alone says it in its own words.
  if (own.error && endings.size() == 1) std::rethrow_exception(own.error);
  const std::string message = absl::StrCat(what, ": ", failed);
  TORCH_CHECK_VALUE(!any(endings, Ending::kFailed), message);
  throw CheckpointError(message);
}

}  // namespace accelerate::internal
