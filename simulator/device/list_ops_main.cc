// Prints which operators simulated devices run: the contents of supported_ops.txt.
#include <iostream>

#include "simulator/device/install.h"
#include "simulator/device/op_info.h"

int main() {
  accelerate::simulator::install_sim_device();
  for (const auto& line : accelerate::simulator::list_op_support()) std::cout << line << "\n";
  return 0;
}
