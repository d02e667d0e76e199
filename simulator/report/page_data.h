/// The data of the HTML page, as compact JSON that page_data.js reads.
///
/// Names, kinds and categories are indices; times and bytes of a track or curve are differences to
/// the element before, which keeps numbers short.
#pragma once

#include "simulator/report/output_file.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// How much a page shows at most.
struct PageBudget {
  size_t slices = 400'000;
  size_t memory_samples = 120'000;
  /// Cells of the communication matrix in a row; with more ranks a cell is a block of them.
  size_t matrix_ranks = 64;
};

void append_page_data(const Trace& trace, const PageBudget& budget, OutputFile& file);

/// How many neighbouring ranks share a row of the matrix.
int matrix_block(const Trace& trace, size_t matrix_ranks);

}  // namespace accelerate::simulator
