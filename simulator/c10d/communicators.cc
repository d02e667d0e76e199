#include "simulator/c10d/communicators.h"

#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"

namespace accelerate::simulator {
namespace {

// "the axis tp".
std::string axis_text(std::optional<MeshAxis> axis) {
  return axis ? absl::StrCat("the axis ", accelerate::to_string(*axis)) : "no axis";
}

}  // namespace

std::shared_ptr<Communicator> communicator_of(Fabric& fabric, const std::string& name,
                                              const std::vector<int>& ranks,
                                              std::optional<MeshAxis> axis) {
  auto found = fabric.communicators().find(name);
  if (found == fabric.communicators().end()) {
    auto made = std::make_shared<Communicator>(fabric, name, ranks, axis);
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
  return communicator;
}

std::vector<int> run_event(Fabric& fabric) {
  if (fabric.message_is_next()) return fabric.receive_next_message();
  fabric.call_order().let_next_out_of_turn();
  Communicator::set_times(fabric.call_order());  // which wakes ranks
  return {};
}

void set_all_times(Fabric& fabric) {
  while (fabric.call_order().has_waiting()) {
    fabric.call_order().let_next_out_of_turn();
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
