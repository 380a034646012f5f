// How the program shows who calls: a person's token, and the channel that carries it.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include <grpcpp/channel.h>

#include "absl/status/statusor.h"
#include "client/commands/context.h"

namespace telar::client {

// A token from TELAR_TOKEN, or from a file, which can be read again. Never from the command line, where everybody on
// the machine could see it. Thread safe.
class TokenSource {
 public:
  explicit TokenSource(std::string token) : token_(std::move(token)) {}
  // INVALID_ARGUMENT: the file cannot be read, is empty, or others than its owner may read it.
  static absl::StatusOr<std::shared_ptr<TokenSource>> read(const std::string& path);

  std::string token() const;
  // Reads the file again; false when there is none, or it is no good.
  bool renew();

 private:
  absl::Status load();

  const std::string path_{};
  mutable std::mutex mutex_;
  std::string token_;  // Guarded by mutex_.
  explicit TokenSource(std::string path, int) : path_(std::move(path)) {}
};

// The token that the options and the environment name; null: none.
absl::StatusOr<std::shared_ptr<TokenSource>> find_token(const Options& options);

// Checks the address and the TLS files; connects to nothing yet. A token travels by TLS only: over a channel in plain
// text it is not sent.
absl::StatusOr<std::shared_ptr<grpc::Channel>> open_channel(const Options& options,
                                                            const std::shared_ptr<TokenSource>& token);

}  // namespace telar::client
