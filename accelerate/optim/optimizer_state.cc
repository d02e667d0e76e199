#include "accelerate/optim/optimizer_state.h"

#include <sstream>
#include <string>
#include <utility>

#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "accelerate/comm/objects.h"

namespace accelerate {
namespace {

std::string saved(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

void load(torch::optim::Optimizer& optimizer, const std::string& bytes, c10::Device device) {
  std::istringstream in(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(in, device);
  optimizer.load(archive);
}

}  // namespace

void broadcast_optimizer_state(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                               torch::optim::Optimizer& optimizer, int source, c10::Device device) {
  const bool sends = group->getRank() == source;
  const std::string bytes = sends ? saved(optimizer) : "";
  // In pieces, because a large model's state is larger than one object may be.
  constexpr size_t kPiece = size_t{1} << 30;
  const size_t size = std::stoull(broadcast_bytes(group, std::to_string(bytes.size()), source));
  std::string received;
  for (size_t begin = 0; begin < size; begin += kPiece) {
    std::string piece =
        broadcast_bytes(group, sends ? bytes.substr(begin, kPiece) : std::string(), source);
    if (!sends) received += piece;
  }
  if (sends) return;
  load(optimizer, received, device);
}

void move_optimizer_state(torch::optim::Optimizer& optimizer, c10::Device device) {
  if (!optimizer.state().empty() && !device.is_cpu()) load(optimizer, saved(optimizer), device);
}

}  // namespace accelerate
