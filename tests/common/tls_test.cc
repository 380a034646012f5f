#include "common/tls.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "common/channel.h"
#include "tests/fakes/dev_ca.h"

namespace telar {
namespace {

using fakes::DevCa;
using testing::ElementsAre;
using testing::HasSubstr;

class Tls : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = testing::TempDir() + "telar-tls-" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    ours_ = new DevCa(folder_ + "/ours", "a b");
    theirs_ = new DevCa(folder_ + "/theirs", "a");
  }
  static void TearDownTestSuite() {
    delete ours_;
    delete theirs_;
    std::filesystem::remove_all(folder_);
  }
  static std::string check(const TlsFiles& files, TlsSide side = TlsSide::kClient, int days = 0) {
    const auto now = std::chrono::system_clock::now() + std::chrono::hours(24) * days;
    return std::string(check_tls(files, side, now).message());
  }

  static std::string folder_;
  static DevCa *ours_, *theirs_;
};
std::string Tls::folder_;
DevCa *Tls::ours_ = nullptr, *Tls::theirs_ = nullptr;

TEST_F(Tls, FilesInOrderPass) {
  EXPECT_EQ(check(ours_->coordinator(), TlsSide::kServer), "");
  EXPECT_EQ(check(ours_->node("a")), "");
  EXPECT_EQ(check(ours_->person()), "");
}

TEST_F(Tls, EachMistakeIsToldWithItsFile) {
  EXPECT_THAT(check({}, TlsSide::kServer), HasSubstr("--tls-ca: is missing"));
  EXPECT_THAT(check(ours_->person(), TlsSide::kServer), HasSubstr("--tls-cert: is missing\n--tls-key: is missing"));
  EXPECT_THAT(check({"", "", "/nowhere"}), HasSubstr("--tls-ca: /nowhere cannot be read"));
  TlsFiles mixed = ours_->node("a");
  mixed.key = ours_->node("b").key;
  EXPECT_THAT(check(mixed), HasSubstr("b.key does not belong to the certificate in"));
  mixed = theirs_->node("a");
  mixed.ca = ours_->person().ca;
  EXPECT_THAT(check(mixed), HasSubstr("does not go with --tls-ca"));
  mixed.key = mixed.ca;
  EXPECT_THAT(check(mixed), HasSubstr("ca.pem has no PEM private key"));
  EXPECT_THAT(check(ours_->node("a"), TlsSide::kClient, 31), HasSubstr("a.pem expired on 20"));
  EXPECT_THAT(check(ours_->node("a"), TlsSide::kClient, -2), HasSubstr("a.pem is not valid before 20"));
  // A node's certificate is none of a server.
  EXPECT_THAT(check(ours_->node("a"), TlsSide::kServer), HasSubstr("does not go with --tls-ca"));
}

TEST_F(Tls, ACertificateSaysWhoseItIs) {
  const auto a = read_certificate(ours_->node("a").cert);
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_THAT(a->nodes, ElementsAre("a"));
  EXPECT_EQ(a->fingerprint.size(), 64u);
  EXPECT_THAT(a->subject, HasSubstr("CN=a"));
  const auto days = std::chrono::duration_cast<std::chrono::hours>(a->not_after - a->not_before).count() / 24.0;
  EXPECT_NEAR(days, 30, 0.1);
  EXPECT_TRUE(read_certificate(ours_->coordinator().cert)->nodes.empty());
  EXPECT_NE(a->fingerprint, read_certificate(theirs_->node("a").cert)->fingerprint);
  EXPECT_FALSE(parse_certificate("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").ok());
}

TEST_F(Tls, Sha256) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// A server that answers every method with UNIMPLEMENTED, and calls to it.
class Handshake : public Tls {
 protected:
  void serve(const TlsFiles& files) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", files.any() ? server_credentials(files) : grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  std::string address(const std::string& host = "127.0.0.1") const { return host + ":" + std::to_string(port_); }
  static grpc::Status call(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const grpc::Slice nothing("");
    const grpc::ByteBuffer request(&nothing, 1);
    grpc::ByteBuffer response;
    grpc::CompletionQueue queue;
    grpc::Status status;
    const auto calling = stub.PrepareUnaryCall(&context, "/a.B/C", request, &queue);
    calling->StartCall();
    calling->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }
  static bool reached(const grpc::Status& status) { return status.error_code() == grpc::StatusCode::UNIMPLEMENTED; }

  int port_ = 0;
  grpc::CallbackGenericService service_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(Handshake, BothSidesCheckEachOther) {
  serve(ours_->coordinator());
  EXPECT_TRUE(reached(call(dial(address(), ours_->node("a")))));
  EXPECT_TRUE(reached(call(dial(address("localhost"), ours_->person()))));

  const grpc::Status wrong_ca = call(dial(address(), theirs_->person()));
  EXPECT_EQ(wrong_ca.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(connection_advice(wrong_ca.error_message(), theirs_->person()), HasSubstr("is not signed by --tls-ca"));

  TlsFiles stranger = theirs_->node("a");
  stranger.ca = ours_->person().ca;
  const grpc::Status refused = call(dial(address(), stranger));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(connection_advice(refused.error_message(), stranger), HasSubstr("it may refuse the certificate"));

  const grpc::Status plain = call(dial(address(), TlsFiles()));
  EXPECT_EQ(plain.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(connection_advice(plain.error_message(), {}), HasSubstr("--tls-ca"));
}

TEST_F(Handshake, AnotherNameIsRefused) {
  serve(ours_->coordinator());
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("elsewhere.example");
  const auto channel = grpc::CreateCustomChannel(address(), channel_credentials(ours_->person()), arguments);
  const grpc::Status status = call(channel);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_THAT(connection_advice(status.error_message(), ours_->person()), HasSubstr("not for the name"))
      << status.error_message();
}

// The coordinator's files change to those of another CA: connections stay, and a new one sees the new certificate.
TEST_F(Handshake, ChangedFilesAreTakenUpAndConnectionsStay) {
  const std::string place = folder_ + "/moving";
  std::filesystem::copy(folder_ + "/ours", place, std::filesystem::copy_options::recursive);
  serve({place + "/coordinator.pem", place + "/coordinator.key", place + "/ca.pem"});
  const auto before = dial(address(), ours_->node("a"));
  EXPECT_TRUE(reached(call(before)));
  for (const char* name : {"coordinator.key", "coordinator.pem", "ca.pem"}) {
    std::filesystem::copy_file(theirs_->path(name), place + "/new");
    std::filesystem::rename(place + "/new", place + "/" + name);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool taken_up = false;
  while (!taken_up && std::chrono::steady_clock::now() < deadline) {
    grpc::ChannelArguments own;  // Or the connection that failed would be used again.
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    taken_up = reached(call(grpc::CreateCustomChannel(address(), channel_credentials(theirs_->node("a")), own)));
    if (!taken_up) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_TRUE(taken_up);
  EXPECT_TRUE(reached(call(before)));  // Still the old connection: a new one would fail.
}

}  // namespace
}  // namespace telar
