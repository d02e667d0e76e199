/// Training programs that a simulated cluster runs twice: with values, and with shapes alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "simulator/cluster/cluster.h"

namespace accelerate {

/// Called at the moments at which two runs are compared, with the name of the moment. Moments of
/// one name are told apart by their number.
using Note = std::function<void(const std::string& moment)>;

struct Program {
  std::string name;
  std::function<void(simulator::Rank&, const Note&)> run;
};

/// Several ways to train on devices, each a few steps. No program reads a value of a tensor on the
/// host, except where its name says so. Layers have tensors of more and of less than 4 KiB.
const std::vector<Program>& programs();

}  // namespace accelerate
