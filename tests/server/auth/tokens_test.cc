#include "server/auth/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/errors.h"
#include "common/tls.h"
#include "server/auth/revoked.h"

namespace telar::server::auth {
namespace {

using testing::HasSubstr;
const Clock::Wall kNow{std::chrono::seconds(1'800'000'000)};  // 2027-01-15T08:00:00Z

std::string line(const std::string& user, const std::string& token, const std::string& rest) {
  return user + "  " + sha256_hex(token) + "  " + rest + "\n";
}

TEST(Tokens, AreFoundByTheirHash) {
  const auto tokens = Tokens::parse("# people\n\n" + line("ann", "t1", "lab=viewer,default=operator never # Ann") +
                                    line("ann", "t2", "*=admin 2027-01-15T08:00:01Z"));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  const auto ann = tokens->find("t1", kNow);
  ASSERT_TRUE(ann.ok()) << ann.status();
  EXPECT_EQ(ann->name, "ann");
  EXPECT_EQ(ann->kind, Caller::Kind::kPerson);
  EXPECT_EQ(ann->role_in("lab"), Role::kViewer);
  EXPECT_EQ(ann->role_in("default"), Role::kOperator);
  EXPECT_EQ(ann->role_in("other"), Role::kNone);
  EXPECT_EQ(ann->highest(), Role::kOperator);
  EXPECT_EQ(tokens->find("t2", kNow)->role_in("other"), Role::kAdmin);

  const absl::Status late = tokens->find("t2", kNow + std::chrono::seconds(1)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(reason(late), "TOKEN_EXPIRED");
  EXPECT_THAT(std::string(late.message()), HasSubstr("token of ann expired on 2027-01-15"));
  for (const std::string& wrong : {std::string("t3"), std::string(), sha256_hex("t1")}) {
    EXPECT_EQ(reason(tokens->find(wrong, kNow).status()), "UNKNOWN_TOKEN") << wrong;
  }
}

TEST(Tokens, EveryFaultyLineIsNamed) {
  const std::string text = line("a", "t", "default=viewer never") + "two words\n" +
                           line("b", "u", "default=king tomorrow") + line("c,d", "v", "default never") +
                           "e ABCD *=admin never\n" + line("f", "t", "*=admin never");
  const std::string told(Tokens::parse(text).status().message());
  for (const char* part :
       {"line 2: 2 words", "line 3: 'king' is none of", "line 3: 'tomorrow' is neither", "line 4: user 'c,d'",
        "line 4: '' is none of", "line 5: of user e: the SHA-256", "line 6: of user f: the same token"}) {
    EXPECT_THAT(told, HasSubstr(part));
  }
}

TEST(Revoked, NamesAndFingerprints) {
  const std::string hash = sha256_hex("certificate");
  std::string colons;
  for (size_t i = 0; i < hash.size(); i += 2) colons += (i == 0 ? "" : ":") + hash.substr(i, 2);
  const auto revoked = Revoked::parse("# gone\nnode-7\n" + colons + "  # stolen\n");
  ASSERT_TRUE(revoked.ok()) << revoked.status();
  EXPECT_TRUE(revoked->contains("node-7", "x"));
  EXPECT_TRUE(revoked->contains("node-8", hash));
  EXPECT_FALSE(revoked->contains("node-8", "x"));
  EXPECT_TRUE(Revoked::parse("\n# nothing\n")->empty());
  EXPECT_THAT(std::string(Revoked::parse("ok\na b\n").status().message()), HasSubstr("line 2: 'a b'"));
}

}  // namespace
}  // namespace telar::server::auth
