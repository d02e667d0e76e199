/// The shape of a GPT, and those that go by a name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

struct Shape {
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t width = 128;       ///< a multiple of the number of heads
  int64_t context = 128;     ///< the most tokens of a sequence
  int64_t vocabulary = 256;  ///< the bytes of a text need 256
  /// The head uses the weights of the token embedding instead of its own.
  bool tied_head = true;

  /// The elements of all parameters. With width w a block has 12 w^2 + 13 w: 3 w^2 + 3 w for
  /// queries, keys and values, w^2 + w behind the attention, 8 w^2 + 5 w for the perceptron, and
  /// 4 w for its two norms. Beside the blocks there are w for each token and each position, 2 w for
  /// the last norm, and the head's w for each token unless it is tied.
  int64_t num_parameters() const;
};

/// "10M", "125M", "350M", "1B", "7B".
const std::vector<std::string>& size_names();
/// The shape of that many parameters. Errors: std::invalid_argument for another name.
Shape shape_of_size(const std::string& name);

}  // namespace gpt
