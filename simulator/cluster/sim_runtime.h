/// The Runtime of one simulated rank.
#pragma once

#include "accelerate/runtime/runtime.h"
#include "simulator/c10d/fabric.h"
#include "simulator/core/random.h"

namespace accelerate::simulator {

class SimRuntime final : public Runtime {
 public:
  SimRuntime(std::shared_ptr<Fabric> fabric, Topology topology, Environment environment,
             uint64_t seed);
  ~SimRuntime() override;

  c10::Device device() const override { return c10::Device(c10::kCPU); }
  /// A fixed epoch plus the cluster's virtual time.
  absl::Time now() override;
  void sleep_for(absl::Duration duration) override;
  uint64_t random_bits() override { return random_.next(); }
  absl::StatusOr<std::string> read_file(const std::string& path) override;
  void write_console(ConsoleStream stream, std::string_view text) override;
  bool is_terminal(ConsoleStream stream) const override;
  c10::intrusive_ptr<c10d::Store> store() override;
  c10::intrusive_ptr<c10d::ProcessGroup> new_group(const GroupOptions& options) override;

 private:
  const std::shared_ptr<Fabric> fabric_;
  DeterministicRandom random_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace accelerate::simulator
