#include "server/options.h"

#include <gtest/gtest.h>

namespace telar::server {
namespace {

TEST(Options, ReadsBothSpellings) {
  const auto options = parse_options({"--data", "/var/x", "--lease=1m", "--heartbeat-interval", "500ms", "--listen",
                                      "0.0.0.0:0", "--http=127.0.0.1:0", "--insecure-listen"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->data, "/var/x");
  EXPECT_EQ(options->run_root, "/var/x/runs");
  EXPECT_EQ(options->lease.count(), 60'000);
  EXPECT_EQ(options->heartbeat_interval.count(), 500);
  EXPECT_FALSE(wants_reflection(*options));  // Not on loopback.
}

TEST(Options, HasDefaults) {
  const auto options = parse_options({"--data", "/var/x"});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->listen, "127.0.0.1:7070");
  EXPECT_TRUE(wants_reflection(*options));
}

TEST(Options, NamesEveryMistakeAtOnce) {
  const auto options = parse_options({"--listen", "nowhere", "--lease", "3s", "--heartbeat-interval", "2s",
                                      "--log-level", "loud", "--nonsense", "1", "stray", "--stop-grace", "soon"});
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string text(options.status().message());
  for (const char* part : {"--listen: 'nowhere'", "--lease: 3000 ms", "'loud'", "--nonsense: unknown", "'stray'",
                           "--data:", "--stop-grace: 'soon' is no TIME, such as"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
}

TEST(Options, SeveralCoordinatorsNeedAnEtcd) {
  const auto options = parse_options(
      {"--data", "/var/x", "--store", "etcd://a:2379,b:2379", "--peers", "c:7070,d:7070", "--leadership-ttl", "5s"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->leadership_ttl.count(), 5'000);
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--store", "sqlite://x"}, "--store: 'sqlite://x' is not etcd://"},
      {{"--peers", "c:7070"}, "--peers: without --store"},
      {{"--store", "etcd://a:1", "--peers", "c:7070,c:7070"}, "--peers: 'c:7070' is there twice"},
      {{"--leadership-ttl", "1500ms"}, "--leadership-ttl: 1500 ms"}};
  for (auto [arguments, text] : wrong) {
    arguments.insert(arguments.end(), {"--data", "/var/x"});
    const absl::Status status = parse_options(arguments).status();
    EXPECT_NE(std::string(status.message()).find(text), std::string::npos) << status;
  }
}

TEST(Options, AnEtcdIsDialledAsWholeOrNotAtAll) {
  const auto options = parse_options({"--data", "/var/x", "--store", "etcd://a:2379", "--etcd-ca", "/ca", "--etcd-cert",
                                      "/cert", "--etcd-key", "/key", "--etcd-user", "u", "--etcd-password-file", "/p"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->etcd.tls.ca + options->etcd.tls.cert + options->etcd.tls.key, "/ca/cert/key");
  EXPECT_EQ(options->etcd.user + options->etcd.password_file, "u/p");
  EXPECT_TRUE(
      parse_options({"--data", "/x", "--store", "etcd://127.0.0.1:1", "--etcd-user", "u", "--etcd-password-file", "/p"})
          .ok());
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--etcd-ca", "/ca"}, "go with --store"},
      {{"--store", "etcd://a:1", "--etcd-cert", "/c", "--etcd-key", "/k"}, "--etcd-ca: is missing"},
      {{"--store", "etcd://a:1", "--etcd-ca", "/c", "--etcd-key", "/k"}, "--etcd-cert and --etcd-key go together"},
      {{"--store", "etcd://a:1", "--etcd-ca", "/c", "--etcd-user", "u"}, "--etcd-password-file go together"},
      {{"--store", "etcd://a:1", "--etcd-user", "u", "--etcd-password-file", "/p"},
       "--etcd-user: needs --etcd-ca, as a:1"}};
  for (auto [arguments, text] : wrong) {
    arguments.insert(arguments.end(), {"--data", "/var/x"});
    const absl::Status status = parse_options(arguments).status();
    EXPECT_NE(std::string(status.message()).find(text), std::string::npos) << status;
  }
}

TEST(Options, AMissingValueIsAMistake) {
  const auto options = parse_options({"--data", "--listen", "127.0.0.1:1"});
  EXPECT_NE(std::string(options.status().message()).find("--data: a value is missing"), std::string::npos);
}

TEST(Options, NobodyListensOpenlyByMistake) {
  const auto mistakes = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--data", "/var/x"});
    return std::string(parse_options(more).status().message());
  };
  const std::vector<std::string> tls = {"--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a"};
  for (const char* address : {"0.0.0.0:7070", "10.0.0.1:0", "[::]:7070", "coordinator.example:7070"}) {
    EXPECT_NE(mistakes({"--listen", address}).find("--insecure-listen"), std::string::npos) << address;
    EXPECT_EQ(mistakes({"--insecure-listen", "--listen", address}), "");
    std::vector<std::string> secure = tls;
    secure.insert(secure.end(), {"--tokens", "t", "--listen", address});
    EXPECT_EQ(mistakes(secure), "");
  }
  for (const char* address : {"127.0.0.1:0", "localhost:7070", "[::1]:7070"}) {
    EXPECT_EQ(mistakes({"--listen", address}), "");
  }
  EXPECT_NE(mistakes({"--http", "0.0.0.0:7071"}).find("--insecure-listen"), std::string::npos);
  EXPECT_NE(mistakes(tls).find("--tokens: is missing"), std::string::npos);
  EXPECT_NE(mistakes({"--tokens", "t"}).find("must not travel in plain text"), std::string::npos);
  EXPECT_NE(mistakes({"--insecure-listen=yes"}).find("takes no value"), std::string::npos);
}

TEST(Options, RootsAreAbsoluteAndHoldTheRuns) {
  const auto options = parse_options({"--data", "/var/x", "--allowed-root", "/a", "--allowed-root=/var/x"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->security.allowed_roots, (std::vector<std::string>{"/a", "/var/x"}));
  EXPECT_EQ(options->security.audit_log, "/var/x/audit.jsonl");
  const auto wrong = parse_options({"--data", "/var/x", "--allowed-root", "data", "--allowed-root", "/a"});
  const std::string text(wrong.status().message());
  EXPECT_NE(text.find("'data' is not an absolute path"), std::string::npos) << text;
  EXPECT_NE(text.find("--run-root: '/var/x/runs' is not below"), std::string::npos) << text;
}

TEST(Options, HelpNeedsNothingElse) {
  EXPECT_TRUE(parse_options({"--help"})->help);
  EXPECT_NE(usage().find("--run-root DIR"), std::string::npos);
}

}  // namespace
}  // namespace telar::server
