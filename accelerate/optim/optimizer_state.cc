#include "accelerate/optim/optimizer_state.h"

#include <sstream>
#include <string>
#include <utility>

#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "accelerate/comm/objects.h"

namespace accelerate {

void broadcast_optimizer_state(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                               torch::optim::Optimizer& optimizer, int source, c10::Device device) {
  const bool sends = group->getRank() == source;
  std::string bytes;
  if (sends) {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    std::ostringstream out;
    archive.save_to(out);
    bytes = out.str();
  }
  bytes = broadcast_bytes(group, std::move(bytes), source);
  if (sends) return;
  std::istringstream in(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(in, device);
  optimizer.load(archive);
}

}  // namespace accelerate
