#include "accelerate/data/dataset_error.h"

#include <algorithm>
#include <exception>

#include <c10/util/Exception.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/data/worker.h"

namespace accelerate::internal {

std::string describe_place(int rank, int64_t batch, c10::ArrayRef<int64_t> indices) {
  constexpr size_t kShown = 8;
  std::string place = absl::StrCat("rank ", rank, ", batch ", batch);
  if (const WorkerInfo* worker = worker_info()) absl::StrAppend(&place, ", worker ", worker->id);
  if (indices.empty()) return place;
  const auto shown = indices.slice(0, std::min(kShown, indices.size()));
  absl::StrAppend(&place, indices.size() == 1 ? ", sample " : ", samples ",
                  absl::StrJoin(shown, ", "), shown.size() < indices.size() ? ", ..." : "");
  return place;
}

void rethrow_with_place(const std::string& place) {
  try {
    throw;
  } catch (const DatasetError&) {
    throw;
  } catch (c10::Error& error) {
    // The innermost place is the most exact one.
    const std::string context = "while a data loader read ";
    const bool placed =
        !error.context().empty() && absl::StartsWith(error.context().front(), context);
    if (!placed) error.add_context(context + place);
    throw;
  } catch (const std::exception& error) {
    std::throw_with_nested(
        DatasetError(absl::StrCat("a data loader failed to read ", place, ": ", error.what())));
  } catch (...) {
    std::throw_with_nested(
        DatasetError(absl::StrCat("a data loader failed to read ", place, ": unknown exception")));
  }
}

}  // namespace accelerate::internal
