// Certificates and a token for a test, by the script that people use.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "common/tls.h"

namespace telar::fakes {

class DevCa {
 public:
  // Makes a CA, a coordinator's certificate and those of `nodes` ("a b") in `folder`.
  DevCa(std::string folder, const std::string& nodes) : folder_(std::move(folder)) { issue(nodes); }

  // New keys and certificates, of the same CA.
  void issue(const std::string& nodes) const {
    const char* root = std::getenv("TELAR_SOURCE_DIR");
    const std::string script = std::string(root == nullptr ? "." : root) + "/deploy/dev-ca.sh";
    EXPECT_EQ(std::system((script + " " + folder_ + " " + nodes + " >" + folder_ + ".log 2>&1").c_str()), 0) << script;
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  TlsFiles coordinator() const { return {path("coordinator.pem"), path("coordinator.key"), path("ca.pem")}; }
  TlsFiles node(const std::string& name) const {
    return {path("nodes/" + name + ".pem"), path("nodes/" + name + ".key"), path("ca.pem")};
  }
  TlsFiles person() const { return {"", "", path("ca.pem")}; }
  std::string admin_token() const {
    std::string token;
    std::getline(std::ifstream(path("admin.token")) >> std::ws, token);
    return token;
  }

 private:
  const std::string folder_;
};

}  // namespace telar::fakes
