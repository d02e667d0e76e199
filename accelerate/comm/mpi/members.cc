#include "accelerate/comm/mpi/members.h"

#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/comm/mpi/mpi_engine.h"
#include "accelerate/comm/rank_text.h"

namespace accelerate::internal {
namespace {

std::string key_of(int member) { return absl::StrCat("mpi/rank/", member); }

std::vector<std::string> read_all(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  if (store.hasExtendedApi()) {
    for (const auto& bytes : store.multiGet(keys)) texts.emplace_back(bytes.begin(), bytes.end());
  } else {
    for (const std::string& key : keys) texts.push_back(store.get_to_str(key));
  }
  return texts;
}

}  // namespace

std::shared_ptr<MpiGroup> make_group(const BackendOptions& options) {
  MpiEngine& engine = MpiEngine::get();
  TORCH_CHECK_VALUE(
      options.size <= engine.size(), "the mpi backend needs ranks that MPI started together, but ",
      engine.size() == 1 ? "this process is alone in its MPI job" : "MPI counts fewer of them: ",
      engine.size() == 1 ? "" : absl::StrCat(engine.size()), "; the group has ", options.size,
      ". Start the program with `mpirun -n ", options.size, "`, with `srun --mpi=pmix`, or with "
      "`accelerate launch --mpirun_hostfile`; or take the backend gloo");
  c10d::Store& store = *options.store;
  store.set(key_of(options.rank), absl::StrCat(engine.rank()));
  std::vector<std::string> keys;
  for (int member = 0; member < options.size; ++member) keys.push_back(key_of(member));
  try {
    store.wait(keys, options.timeout);
  } catch (const c10::DistNetworkError&) {
    throw;
  } catch (const c10::DistStoreError&) {
    std::vector<int> missing;
    for (int member = 0; member < options.size; ++member) {
      if (!store.check({keys[member]})) missing.push_back(member);
    }
    throw c10::DistBackendError(absl::StrCat("waited in vain for ", rank_list(missing),
                                             " of the group to make it, for ",
                                             options.timeout.count(), " ms"));
  }
  std::vector<int> members;
  for (const std::string& text : read_all(store, keys)) {
    int rank = -1;
    TORCH_CHECK(absl::SimpleAtoi(text, &rank), "a member of the group wrote \"", text,
                "\" where its rank in the MPI job should be");
    members.push_back(rank);
  }
  return engine.make_group(std::move(members), options.timeout);
}

}  // namespace accelerate::internal
