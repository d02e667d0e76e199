/// Whether this process is about to end.
///
///   if (process_is_ending()) write_all();  // there is no later flush
///
/// Threads: any. Process-wide: for ranks that own their process.
#pragma once

namespace accelerate {

/// From a signal, or std::exit, on: a tracker that is flushed then is not flushed again.
bool process_is_ending();

/// For FlushOnExit, and for tests.
void set_process_is_ending(bool ending);

}  // namespace accelerate
