#include "simulator/c10d/communicators.h"

#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/message_text.h"

namespace accelerate::simulator {
namespace {

// "the axis tp".
std::string axis_text(std::optional<MeshAxis> axis) {
  return axis ? absl::StrCat("the axis ", accelerate::to_string(*axis)) : "no axis";
}

// The library of the ranks' tensors in "nccl" or "cpu:gloo,cuda:nccl"; empty if it names none.
std::string library_of(const std::string& backend, bool has_devices) {
  std::string found;
  for (const absl::string_view each : absl::StrSplit(backend, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(each, absl::MaxSplits(':', 1));
    if (parts.second.empty()) return std::string(each);
    if ((parts.first == "cpu") != has_devices) found = std::string(parts.second);
  }
  return found;
}

Semantics semantics_of(const std::string& backend, const Fabric& fabric) {
  const std::string library = library_of(backend, fabric.models_time());
  if (library.empty() || library == "sim") return fabric.options().semantics;
  for (const Semantics each : {Semantics::kGloo, Semantics::kNccl, Semantics::kMpi}) {
    if (library == accelerate::to_string(each)) return each;
  }
  TORCH_CHECK_VALUE(false, "a simulated group behaves as gloo, nccl or mpi do, not as \"", library,
                    "\"; leave the backend out");
}

}  // namespace

std::shared_ptr<Communicator> communicator_of(Fabric& fabric, const std::string& name,
                                              const std::vector<int>& ranks,
                                              std::optional<MeshAxis> axis,
                                              const std::string& backend) {
  const Semantics semantics = semantics_of(backend, fabric);
  auto found = fabric.communicators().find(name);
  if (found == fabric.communicators().end()) {
    auto made = std::make_shared<Communicator>(fabric, name, ranks, axis, semantics);
    fabric.record_group_of(semantics);
    found = fabric.communicators().emplace(name, std::move(made)).first;
  }
  const std::shared_ptr<Communicator>& communicator = found->second;
  const int rank = fabric.running_rank();
  TORCH_CHECK_VALUE(communicator->ranks() == ranks, "group \"", name, "\" of ", axis_text(axis),
                    " has ", rank_list(ranks), " on rank ", rank, " and ",
                    rank_list(communicator->ranks()), " on rank ", communicator->made_by());
  TORCH_CHECK_VALUE(communicator->axis() == axis, "group \"", name, "\" belongs to ",
                    axis_text(axis), " on rank ", rank, " and to ", axis_text(communicator->axis()),
                    " on rank ", communicator->made_by());
  TORCH_CHECK_VALUE(communicator->semantics() == semantics, "group \"", name,
                    "\" has the semantics ", accelerate::to_string(semantics), " on rank ", rank,
                    " and ", accelerate::to_string(communicator->semantics()), " on rank ",
                    communicator->made_by(), ", because they name different backends");
  return communicator;
}

std::vector<int> run_event(Fabric& fabric) {
  if (fabric.message_is_next()) return fabric.receive_next_message();
  fabric.call_order().admit_next_waiting();
  Communicator::set_times(fabric.call_order());  // which wakes ranks
  return {};
}

void set_all_times(Fabric& fabric) {
  while (fabric.call_order().has_waiting()) {
    fabric.call_order().admit_next_waiting();
    Communicator::set_times(fabric.call_order());
  }
}

void await_collectives(Fabric& fabric) {
  const int rank = fabric.running_rank();
  for (const auto& call : fabric.call_order().without_time(fabric.scheduler().running())) {
    call->communicator->await_on_device(rank, call);
  }
}

std::optional<std::string> unnoticed_failure(const Fabric& fabric) {
  for (const auto& [name, communicator] : fabric.communicators()) {
    if (std::optional<std::string> failure = communicator->unnoticed_failure()) return failure;
  }
  return std::nullopt;
}

}  // namespace accelerate::simulator
