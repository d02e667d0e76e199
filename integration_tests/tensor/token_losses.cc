#include "integration_tests/tensor/token_losses.h"

#include <cstddef>
#include <string>

#include <torch/torch.h>

namespace accelerate {

TokenOutcome train_on_every_rank(simulator::Cluster& cluster,
                                 const std::function<TokenShare()>& train) {
  cluster.run_on_every_rank([&](simulator::Rank& rank) {
    const TokenShare own = train();
    rank.report("losses", torch::tensor(own.losses, torch::kDouble));
    rank.report("tokens", torch::tensor(own.tokens, torch::kDouble));
    rank.report("norms", torch::tensor(own.norms, torch::kDouble));
  });
  const auto total = [&cluster](const std::string& name) {
    const at::Tensor sums = torch::stack(cluster.reports(name)).sum(0);
    return std::vector<double>(sums.const_data_ptr<double>(),
                               sums.const_data_ptr<double>() + sums.numel());
  };
  TokenOutcome outcome{.losses = total("losses"), .norms = total("norms")};
  const std::vector<double> tokens = total("tokens");
  for (size_t step = 0; step < tokens.size(); ++step) {
    outcome.losses[step] /= tokens[step];
    outcome.norms[step] /= cluster.world_size();
  }
  return outcome;
}

}  // namespace accelerate
