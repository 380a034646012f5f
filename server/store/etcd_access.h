// How a coordinator gets into its etcd.
#pragma once

#include <string>

#include "common/tls.h"

namespace telar::server::store {

// How etcd knows us, and we it. Without anything: in plain text, and etcd lets everybody in.
struct EtcdAccess {
  TlsFiles tls;  // `ca` is who signed etcd's certificate; with `cert` and `key` we show one, too.
  // With a user, calls carry the token that etcd gives for the password. It forgets tokens (after five minutes without
  // a call, or when it is started again); then it is asked for another one.
  std::string user;
  std::string password_file;  // The password and nothing else but a line's end; read whenever it is needed.
};

}  // namespace telar::server::store
