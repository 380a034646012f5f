// How clients of the coordinator dial it: keepalive, quick reconnects, no surprises.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server_builder.h>

#include "common/tls.h"

namespace telar {

// "host:port", or several with commas between (addresses.h): then calls go to the one whose health is SERVING, which is
// the leader, and fail with UNAVAILABLE while there is none. Gives the peer 5 s to say hello; dials one that is not
// there again at least every second or so. Pings every 4 s even without calls, gives a silent peer 3 s, and as long to
// acknowledge what was sent: so a connection of which the other side knows nothing any more is noticed within 7 s.
// While no call is under way its sockets are looked after every 200 ms (GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS).
// Receives messages up to 16 MiB. Without TLS files in plain text; workers and ranks have theirs in the environment. Of
// several, each must have a certificate with the host name of the first.
std::shared_ptr<grpc::Channel> dial(const std::string& address, const TlsFiles& tls = tls_from_environment());
std::shared_ptr<grpc::Channel> dial(const std::string& address,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials);

// kShared: channels of one process to one address have one connection. kOwn: nobody else uses it.
enum class Connection { kShared, kOwn };
std::shared_ptr<grpc::Channel> dial(const std::string& address, Connection connection);

// Whether only this machine can reach it: "127.0.0.1:7070", "localhost:7070", "[::1]:7070", "unix:/path".
bool is_loopback(const std::string& address);

// Header of the answers to Heartbeat: the coordinator's term, which grows with every change of the leader. Absent where
// only one coordinator can be. A worker obeys no smaller term than the largest that it has heard.
inline constexpr const char* kTermHeader = "telar-term";

// The server side of the same bargain: accepts pings every 2 s, and notices as soon that a client is gone.
void set_keepalive(grpc::ServerBuilder& builder);

}  // namespace telar
