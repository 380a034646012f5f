// TLS between the programs: which files, whether they are in order, and gRPC credentials that follow them.
//
// A worker is known by its certificate: a SAN of the form URI:telar://node/NAME, in a certificate of the coordinator's
// CA. A person shows no certificate but a token (server/auth/tokens.h). docs/security.md has the whole picture.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include "absl/status/statusor.h"
#include "common/clock.h"

namespace telar {

// PEM files. Daemons have all three, a person only `ca`. Empty: not given.
struct TlsFiles {
  std::string cert;  // The own certificate first, then those between it and the CA.
  std::string key;
  std::string ca;  // Who must have signed the other side's.

  bool any() const { return !cert.empty() || !key.empty() || !ca.empty(); }
};

struct Certificate {
  std::string subject;
  std::string fingerprint;         // SHA-256 of its DER form, 64 lower-case hex digits.
  std::vector<std::string> nodes;  // Of its URIs telar://node/NAME.
  Clock::Wall not_before, not_after;
};
// The first one of a PEM text. INVALID_ARGUMENT: there is none.
absl::StatusOr<Certificate> parse_certificate(const std::string& pem);
absl::StatusOr<Certificate> read_certificate(const std::string& path);

enum class TlsSide { kServer, kClient };
// Whether a handshake with these files can work at `now`: readable, of one piece, signed by the CA, in their time.
// Every mistake, one a line, each with its flag and file; a server needs all three, a client `ca`, or all.
absl::Status check_tls(const TlsFiles& files, TlsSide side, Clock::Wall now);

// Credentials read the files again every few seconds: new handshakes use what stands there then, and connections that
// exist go on. The channel's check the server's name; the server's take clients with a certificate of the CA, or
// without any, and leave it to the call what that is good for.
std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsFiles& files);
std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& files);

// TELAR_TLS_CERT, TELAR_TLS_KEY, TELAR_TLS_CA: how a worker hands its files to its ranks.
TlsFiles tls_from_environment();
void tls_to_environment(const TlsFiles& files);  // Before any thread.

// What to look at after a connection failed with this message of gRPC's.
std::string connection_advice(const std::string& message, const TlsFiles& files);

// 64 lower-case hex digits.
std::string sha256_hex(const std::string& bytes);

}  // namespace telar
