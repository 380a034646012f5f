#include "common/channel.h"

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <cstdlib>

#include "common/addresses.h"

namespace telar {
namespace {

// A thread that waits in a call looks after all sockets of gRPC's. Where there is none, as between two tries of a call,
// gRPC does so by itself, but every 5 s only: a leader that has long been there is seen as late. Read by gRPC when its
// first channel is made; set here, while there is one thread. Whoever sets it in the environment is obeyed.
[[maybe_unused]] const int kUnattended = setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "200", /*replace=*/0);

// Both sides of a connection notice within 7 s that the other one is gone: before a lease of 10 s is over, with time to
// dial again. The timeout is also TCP's (TCP_USER_TIMEOUT), for what was sent.
constexpr int kPingMs = 4'000, kSilentMs = 3'000, kLeastBetweenPingsMs = 2'000;

// Every address is connected to, and asked for its health all the time. gRPC checks one name for the whole channel.
void follow_the_leader(const std::string& addresses, grpc::ChannelArguments& arguments) {
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, split_addresses(addresses).front());
  arguments.SetServiceConfigJSON(
      R"({"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": "telar.v1.Jobs"}})");
}

std::shared_ptr<grpc::ChannelCredentials> credentials_of(const TlsFiles& tls) {
  return tls.any() ? channel_credentials(tls) : grpc::InsecureChannelCredentials();
}

std::shared_ptr<grpc::Channel> make_channel(const std::string& address,
                                            const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                            Connection connection) {
  grpc::ChannelArguments arguments;
  if (connection == Connection::kOwn) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kSilentMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // In spite of its name this bounds how long one attempt may take, not how soon the next one starts.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetMaxReceiveMessageSize(16 << 20);
  if (split_addresses(address).size() > 1) follow_the_leader(address, arguments);
  return grpc::CreateCustomChannel(grpc_target(address), credentials, arguments);
}

}  // namespace

std::shared_ptr<grpc::Channel> dial(const std::string& address, const TlsFiles& tls) {
  return dial(address, credentials_of(tls));
}

std::shared_ptr<grpc::Channel> dial(const std::string& address,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  return make_channel(address, credentials, Connection::kShared);
}

std::shared_ptr<grpc::Channel> dial(const std::string& address, Connection connection) {
  return make_channel(address, credentials_of(tls_from_environment()), connection);
}

bool is_loopback(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  in_addr number{};  // "127.example.com" is no address of this machine.
  const bool inside = inet_pton(AF_INET, host.c_str(), &number) == 1 && ntohl(number.s_addr) >> 24 == 127;
  return inside || host == "localhost" || host == "[::1]";
}

void set_keepalive(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kSilentMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kLeastBetweenPingsMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace telar
