#include "client/commands/credentials.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "client/commands/call.h"
#include "client/commands/contexts.h"
#include "client/commands/exit_codes.h"
#include "client/commands/token.h"
#include "common/tls.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

using testing::HasSubstr;

class Credentials : public CommandTest {
 protected:
  Credentials() : folder_(testing::TempDir() + "telar-credentials-" + std::to_string(getpid()) + "/") {
    std::filesystem::create_directories(folder_);
    unsetenv("TELAR_TOKEN");
  }
  ~Credentials() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name, const std::string& text, mode_t mode = 0600) {
    std::ofstream(folder_ + name) << text;
    chmod((folder_ + name).c_str(), mode);
    return folder_ + name;
  }
  absl::Status cancel_once() {
    v1::CancelJobRequest request;
    request.set_name(add_job("j", v1::Job::RUNNING).name());
    return call(context, &v1::Jobs::StubInterface::CancelJob, request).status();
  }

  const std::string folder_;
};

TEST_F(Credentials, ATokenIsReadFromItsOwnersFileOnly) {
  const auto good = TokenSource::read(file("good", "telar_abc\n"));
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ((*good)->token(), "telar_abc");
  file("good", "telar_new");
  EXPECT_TRUE((*good)->renew());
  EXPECT_EQ((*good)->token(), "telar_new");
  std::filesystem::remove(folder_ + "good");
  EXPECT_FALSE((*good)->renew());
  EXPECT_EQ((*good)->token(), "telar_new");

  const auto message = [](const std::string& path) { return std::string(TokenSource::read(path).status().message()); };
  EXPECT_THAT(message(file("open", "t", 0644)), HasSubstr("can be read by others; chmod 600"));
  EXPECT_THAT(message(file("empty", "\n")), HasSubstr("has no token in it"));
  EXPECT_THAT(message(file("strange", "a b")), HasSubstr("has no token in it"));
  EXPECT_THAT(message(folder_ + "none"), HasSubstr("cannot be read"));
}

TEST_F(Credentials, TheEnvironmentGoesFirst) {
  Options options;
  EXPECT_EQ(*find_token(options), nullptr);
  options.token_file = file("token", "from-file");
  EXPECT_EQ((*find_token(options))->token(), "from-file");
  setenv("TELAR_TOKEN", "from-environment", 1);
  EXPECT_EQ((*find_token(options))->token(), "from-environment");
  EXPECT_FALSE((*find_token(options))->renew());
  setenv("TELAR_TOKEN", "two words", 1);
  EXPECT_FALSE(find_token(options).ok());
  unsetenv("TELAR_TOKEN");
}

TEST_F(Credentials, AContextFillsInWhatWasNotGiven) {
  const std::string path =
      file("contexts.yaml",
           "current: lab\ncontexts:\n  lab: {coordinator: 'lab:7070', tls_ca: /ca, token_file: /t, project: nlp}\n"
           "  odd: {colour: red}\n");
  Options options;
  ASSERT_TRUE(apply_context(path, "", {}, options).ok());
  EXPECT_EQ(options.coordinator, "lab:7070");
  EXPECT_EQ(options.tls.ca, "/ca");
  EXPECT_EQ(options.token_file, "/t");
  EXPECT_EQ(options.project, "nlp");
  options = {};
  options.coordinator = "mine:1";
  ASSERT_TRUE(apply_context(path, "lab", {.coordinator = true}, options).ok());
  EXPECT_EQ(options.coordinator, "mine:1");
  EXPECT_EQ(options.tls.ca, "/ca");

  const auto message = [&](const std::string& where, const std::string& name) {
    return std::string(apply_context(where, name, {}, options).message());
  };
  EXPECT_THAT(message(path, "home"), HasSubstr("there is no context 'home'"));
  EXPECT_THAT(message(path, "odd"), HasSubstr("'colour' is none of coordinator, tls_ca, token_file"));
  EXPECT_NE(message(folder_ + "none", "lab"), "");
  EXPECT_EQ(message(folder_ + "none", ""), "");
  EXPECT_THAT(message(file("broken", "a: [\n"), "lab"), HasSubstr("broken"));
}

TEST_F(Credentials, AnUnknownTokenIsReadAgainAndTriedOnce) {
  int renewed = 0;
  const grpc::Status unknown(grpc::StatusCode::UNAUTHENTICATED, "who is it?");
  coordinator.service.cancel_answers = {unknown, unknown, unknown};
  EXPECT_EQ(cancel_once().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(coordinator.service.cancels.size(), 1u);  // There is nothing to read again.
  context.renew_token = [&renewed] { return ++renewed > 0; };
  EXPECT_EQ(cancel_once().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(renewed, 1);
  EXPECT_EQ(coordinator.service.cancels.size(), 3u);
  coordinator.service.cancel_answers = {unknown};
  EXPECT_TRUE(cancel_once().ok());
  EXPECT_EQ(renewed, 2);
}

TEST_F(Credentials, WhoIsToldToWaitDoesSo) {
  coordinator.service.cancel_answers = {to_grpc(exhausted("RATE_LIMIT", "slowly", std::chrono::milliseconds(30)))};
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(cancel_once().ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
}

TEST_F(Credentials, ANewTokenAndItsLine) {
  ASSERT_EQ(token_new(context, {"ann", {"lab=viewer", "*=submitter"}, 0}), kOk);
  std::istringstream lines(out.str());
  std::string token, user, hash, roles, until;
  lines >> token >> user >> hash >> roles >> until;
  EXPECT_EQ(token.size(), 6u + 64u) << token;
  EXPECT_EQ(hash, sha256_hex(token));
  EXPECT_EQ(user + roles + until, "annlab=viewer,*=submitternever");
  out.str("");
  ASSERT_EQ(token_new(context, {"ann", {"lab=viewer"}, 1}), kOk);
  EXPECT_EQ(out.str().find(token), std::string::npos);
  EXPECT_EQ(token_new(context, {"an n", {"lab=king"}, 1}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("'lab=king' is not PROJECT=ROLE"));
}

}  // namespace
}  // namespace telar::client
