// What the program's exit status means. Scripts rely on it: never renumber.
#pragma once

namespace telar::client {

enum ExitCode : int {
  kOk = 0,           // Done; for watch, logs -f, submit --watch and --wait: the job SUCCEEDED. Also after a detach.
  kJobFailed = 1,    // The job FAILED.
  kDiffers = 1,      // ckpt diff: they differ.
  kUsage = 2,        // The command line or the spec is wrong.
  kCancelled = 3,    // The job was CANCELLED.
  kNotFound = 4,     // No such job.
  kUnreachable = 5,  // The coordinator does not answer.
  kTimedOut = 6,     // --wait-timeout passed; the job goes on.
  kRefused = 7,      // The coordinator said no: a wrong state, no capacity, or an error of its own; plan: it won't fit.
  kLost = 8,         // A stream broke and could not be resumed within --timeout.
  kDamaged = 9,      // data, ckpt: what a file holds is not what it should be; a faulty document.
};

// For --help.
inline constexpr const char* kExitCodeHelp =
    "Exit codes: 0 ok or detached, 1 job failed (ckpt diff: different), 2 bad usage or spec,\n"
    "3 job cancelled, 4 not found, 5 coordinator unreachable, 6 wait timed out, 7 refused by the coordinator,\n"
    "8 connection lost, 9 damaged (data, ckpt: a file is not what it should be).\n"
    "watch, logs -f, submit --watch and submit --wait end with the code of the job.";

}  // namespace telar::client
