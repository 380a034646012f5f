#include "client/commands/credentials.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include <grpcpp/security/credentials.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/addresses.h"
#include "common/channel.h"

namespace telar::client {
namespace {

constexpr size_t kMostToken = 4096;

class TokenPlugin final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenPlugin(std::shared_ptr<TokenSource> token) : token_(std::move(token)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace("authorization", "Bearer " + token_->token());
    return grpc::Status::OK;
  }

 private:
  const std::shared_ptr<TokenSource> token_;
};

// What HTTP/2 can carry; anything else would fail each call with an error that says nothing.
bool is_token(const std::string& text) {
  return !text.empty() && text.size() <= kMostToken &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 127; });
}

}  // namespace

absl::StatusOr<std::shared_ptr<TokenSource>> TokenSource::read(const std::string& path) {
  std::shared_ptr<TokenSource> source(new TokenSource(path, 0));
  if (absl::Status status = source->load(); !status.ok()) return status;
  return source;
}

absl::Status TokenSource::load() {
  struct stat facts = {};
  std::ifstream file(path_);
  if (!file || stat(path_.c_str(), &facts) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("token file ", path_, " cannot be read"));
  }
  if ((facts.st_mode & 077) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("token file ", path_, " can be read by others; chmod 600 ", path_,
                                                   ", and better take a new token"));
  }
  std::string text;
  std::getline(file, text);
  text = std::string(absl::StripAsciiWhitespace(text));
  if (!is_token(text)) return absl::InvalidArgumentError(absl::StrCat("token file ", path_, " has no token in it"));
  const std::lock_guard lock(mutex_);
  token_ = text;
  return absl::OkStatus();
}

std::string TokenSource::token() const {
  const std::lock_guard lock(mutex_);
  return token_;
}

bool TokenSource::renew() { return !path_.empty() && load().ok(); }

absl::StatusOr<std::shared_ptr<TokenSource>> find_token(const Options& options) {
  const char* token = std::getenv("TELAR_TOKEN");
  if (token != nullptr && *token != '\0') {
    if (!is_token(token))
      return absl::InvalidArgumentError("TELAR_TOKEN is no token: it has spaces or strange characters");
    return std::make_shared<TokenSource>(token);
  }
  if (options.token_file.empty()) return std::shared_ptr<TokenSource>();
  return TokenSource::read(options.token_file);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> open_channel(const Options& options,
                                                            const std::shared_ptr<TokenSource>& token) {
  const std::string wrong = options.coordinator.starts_with("unix:") ? "" : check_addresses(options.coordinator);
  if (!wrong.empty()) {
    return absl::InvalidArgumentError("--coordinator: got '" + options.coordinator +
                                      "', want host:port with a port from 1 to 65535, or several with commas between");
  }
  if (!options.tls.any()) return dial(options.coordinator, TlsFiles());
  if (absl::Status status = check_tls(options.tls, TlsSide::kClient, RealClock().wall()); !status.ok()) return status;
  std::shared_ptr<grpc::ChannelCredentials> credentials = channel_credentials(options.tls);
  if (token != nullptr) {
    credentials = grpc::CompositeChannelCredentials(
        credentials, grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenPlugin>(token)));
  }
  return dial(options.coordinator, credentials);
}

}  // namespace telar::client
