/// A Runtime on a CPU without an outside: no time passes, no file exists, the rank is alone.
/// Tests derive from it what they need.
#pragma once

#include <optional>
#include <string_view>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/time/time.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

class FakeRuntime : public Runtime {
 public:
  explicit FakeRuntime(Topology topology = {}) : Runtime(topology, Environment()) {}

  c10::Device device() const override { return c10::kCPU; }
  std::optional<bool> device_has(DeviceTrait) const override { return false; }
  absl::Time now() override { return absl::UnixEpoch(); }
  void sleep_for(absl::Duration) override {}
  uint64_t random_bits() override { return 4; }
  FileSystem& files() override { TORCH_CHECK(false, "no files"); }
  void write_console(ConsoleStream, std::string_view) override {}
  bool is_terminal(ConsoleStream) const override { return false; }
  c10::intrusive_ptr<c10d::Store> store() override { TORCH_CHECK(false, "no store"); }
  c10::intrusive_ptr<c10d::ProcessGroup> new_group(const GroupOptions&) override {
    TORCH_CHECK(false, "no groups");
  }
};

}  // namespace accelerate
