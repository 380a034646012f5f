// A place where a program's runs can be held until something outside of it is done: the program says where
// (Program::record_gate), the executor's user when. What the program records behind the gate for its lane, and whatever
// depends on that, starts later; all else goes on. An open gate costs nothing.
//
//   executor->submit();                   run 7
//   copies.wait(behind run 7);            somebody copies what run 7 left
//   copies.copy(...);
//   gate.close_until(copies);
//   executor->submit();                   run 8 overwrites it behind its gate only
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/device.h"

namespace telar::engine {

// Threads: one, that which submits the runs. Outlives the executor that it was set in.
class Gate {
 public:
  static absl::StatusOr<std::unique_ptr<Gate>> create(backend::Device& device);

  // The next run that is submitted stops here until `stream` has done what it was given by now. Runs keep their order,
  // so later ones need not.
  void close_until(backend::Stream& stream);
  bool closed() const { return closed_; }
  // For executors: what `lane` is given from here on waits, if the gate is closed. Opens it.
  void pass(backend::Stream& lane);
  // How long the last run that found the gate closed stood before it. Blocks until it has passed; 0: there was none.
  absl::StatusOr<double> seconds_held() const;

 private:
  explicit Gate(backend::Device& device) : device_(device) {}

  backend::Device& device_;
  std::unique_ptr<backend::Event> done_, arrived_, passed_;
  bool closed_ = false;
  bool held_ = false;  // A run was.
};

}  // namespace telar::engine
