/// The c10d Store of a simulated cluster: one table that all ranks share, in memory.
///
/// Waits behave as TCPStore's do. A time-out that the caller names passes in virtual time; under
/// the default one, a wait that nobody can end any more is reported at once as a stall.
/// Errors: c10::DistStoreError naming the missing keys.
/// Threads: only the rank that holds the baton may call in.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "simulator/c10d/fabric.h"

namespace accelerate::simulator {

class SimStore final : public c10d::Store {
 public:
  explicit SimStore(std::shared_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}

  using c10d::Store::compareSet;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  void enter();
  const std::vector<uint8_t>* read(const std::string& key);
  void write(const std::string& key, std::vector<uint8_t> value);
  void wait_for(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout,
                bool asked_for);

  const std::shared_ptr<Fabric> fabric_;
};

}  // namespace accelerate::simulator
