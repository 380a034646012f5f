#include "common/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace telar {
namespace {

constexpr unsigned kReloadSeconds = 2;
constexpr const char* kNodePrefix = "telar://node/";

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* one) const {
    kFree(one);
  }
};
using X509Ptr = std::unique_ptr<X509, Freer<X509_free>>;
using BioPtr = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using StorePtr = std::unique_ptr<X509_STORE, Freer<X509_STORE_free>>;
using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX_free>>;
using Chain = std::vector<X509Ptr>;

absl::StatusOr<std::string> slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || file.bad()) return absl::NotFoundError("cannot be read");
  return text.str();
}

BioPtr memory(const std::string& text) { return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

Chain parse_chain(const std::string& pem) {
  Chain chain;
  const BioPtr bio = memory(pem);
  while (X509Ptr one{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) chain.push_back(std::move(one));
  ERR_clear_error();
  return chain;
}

Clock::Wall wall_time(const ASN1_TIME* time) {
  std::tm broken = {};
  ASN1_TIME_to_tm(time, &broken);
  return std::chrono::system_clock::from_time_t(timegm(&broken));
}

std::string date(Clock::Wall time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromChrono(time), absl::UTCTimeZone());
}

std::vector<std::string> node_names(X509* certificate) {
  std::vector<std::string> names;
  auto* all = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; all != nullptr && i < sk_GENERAL_NAME_num(all); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(all, i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    const std::string text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                           static_cast<size_t>(ASN1_STRING_length(uri)));
    if (text.starts_with(kNodePrefix)) names.push_back(text.substr(std::string(kNodePrefix).size()));
  }
  GENERAL_NAMES_free(all);
  return names;
}

Certificate describe(X509* certificate) {
  Certificate facts;
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate, &der);
  facts.fingerprint = sha256_hex(std::string(reinterpret_cast<char*>(der), static_cast<size_t>(std::max(size, 0))));
  OPENSSL_free(der);
  char* subject = X509_NAME_oneline(X509_get_subject_name(certificate), nullptr, 0);
  facts.subject = subject;
  OPENSSL_free(subject);
  facts.nodes = node_names(certificate);
  facts.not_before = wall_time(X509_get0_notBefore(certificate));
  facts.not_after = wall_time(X509_get0_notAfter(certificate));
  return facts;
}

// Reads the files of one side and collects what is wrong with them.
class Check {
 public:
  Check(const TlsFiles& files, TlsSide side, Clock::Wall now) : files_(files), side_(side), now_(now) {}

  absl::Status run() {
    const bool identity = !files_.cert.empty() || !files_.key.empty();
    if (files_.ca.empty()) add("--tls-ca: is missing; it says whom to trust");
    if (files_.cert.empty() && (identity || side_ == TlsSide::kServer)) add("--tls-cert: is missing");
    if (files_.key.empty() && (identity || side_ == TlsSide::kServer)) add("--tls-key: is missing");
    if (!mistakes_.empty()) return result();
    const Chain ca = chain("--tls-ca", files_.ca);
    if (identity) check_identity(ca);
    return result();
  }

 private:
  void add(const std::string& mistake) { mistakes_.push_back(mistake); }
  absl::Status result() const {
    return mistakes_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(mistakes_, "\n"));
  }
  Chain chain(const char* flag, const std::string& path) {
    const auto text = slurp(path);
    Chain found = text.ok() ? parse_chain(*text) : Chain();
    if (!text.ok()) {
      add(absl::StrCat(flag, ": ", path, " cannot be read"));
    } else if (found.empty()) {
      add(absl::StrCat(flag, ": ", path, " has no PEM certificate in it"));
    }
    return found;
  }
  void check_identity(const Chain& ca) {
    const Chain own = chain("--tls-cert", files_.cert);
    const auto text = slurp(files_.key);
    const std::string pem = text.value_or("");
    const BioPtr bio = memory(pem);
    const KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, const_cast<char*>("")));  // No passphrase.
    if (!text.ok() || !key) {
      add(absl::StrCat("--tls-key: ", files_.key,
                       text.ok() ? " has no PEM private key without a passphrase in it" : " cannot be read"));
    }
    if (!own.empty() && key && X509_check_private_key(own.front().get(), key.get()) != 1) {
      add(absl::StrCat("--tls-key: ", files_.key, " does not belong to the certificate in ", files_.cert));
    }
    ERR_clear_error();
    if (!own.empty()) check_time(own.front().get());
    if (!own.empty() && !ca.empty() && mistakes_.empty()) check_signature(own, ca);
  }
  void check_time(X509* certificate) {
    const Certificate facts = describe(certificate);
    if (facts.not_after <= now_) {
      add(absl::StrCat("--tls-cert: ", files_.cert, " expired on ", date(facts.not_after), "; renew it"));
    } else if (facts.not_before > now_) {
      add(absl::StrCat("--tls-cert: ", files_.cert, " is not valid before ", date(facts.not_before),
                       "; is the clock right?"));
    }
  }
  void check_signature(const Chain& own, const Chain& ca) {
    const StorePtr store(X509_STORE_new());
    for (const X509Ptr& one : ca) X509_STORE_add_cert(store.get(), one.get());
    STACK_OF(X509)* between = sk_X509_new_null();
    for (const X509Ptr& one : own) sk_X509_push(between, one.get());
    const StoreContextPtr context(X509_STORE_CTX_new());
    X509_STORE_CTX_init(context.get(), store.get(), own.front().get(), between);
    X509_STORE_CTX_set_default(context.get(), side_ == TlsSide::kServer ? "ssl_server" : "ssl_client");
    X509_VERIFY_PARAM_set_time(X509_STORE_CTX_get0_param(context.get()), std::chrono::system_clock::to_time_t(now_));
    if (X509_verify_cert(context.get()) != 1) {
      const int problem = X509_STORE_CTX_get_error(context.get());
      add(absl::StrCat("--tls-cert: ", files_.cert, " does not go with --tls-ca ", files_.ca, ": ",
                       X509_verify_cert_error_string(problem)));
    }
    sk_X509_free(between);
    ERR_clear_error();
  }

  const TlsFiles& files_;
  const TlsSide side_;
  const Clock::Wall now_;
  std::vector<std::string> mistakes_;
};

using Provider = grpc::experimental::FileWatcherCertificateProvider;

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

absl::StatusOr<Certificate> parse_certificate(const std::string& pem) {
  const Chain chain = parse_chain(pem);
  if (chain.empty()) return absl::InvalidArgumentError("no PEM certificate");
  return describe(chain.front().get());
}

absl::StatusOr<Certificate> read_certificate(const std::string& path) {
  const auto text = slurp(path);
  if (!text.ok()) return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  auto certificate = parse_certificate(*text);
  if (!certificate.ok()) return absl::InvalidArgumentError(absl::StrCat(path, " has no PEM certificate in it"));
  return certificate;
}

absl::Status check_tls(const TlsFiles& files, TlsSide side, Clock::Wall now) { return Check(files, side, now).run(); }

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsFiles& files) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(files.cert.empty()
                                       ? std::make_shared<Provider>(files.ca, kReloadSeconds)
                                       : std::make_shared<Provider>(files.key, files.cert, files.ca, kReloadSeconds));
  options.watch_root_certs();
  if (!files.cert.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& files) {
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<Provider>(files.key, files.cert, files.ca, kReloadSeconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

TlsFiles tls_from_environment() {
  return {from_environment("TELAR_TLS_CERT"), from_environment("TELAR_TLS_KEY"), from_environment("TELAR_TLS_CA")};
}

void tls_to_environment(const TlsFiles& files) {
  setenv("TELAR_TLS_CERT", files.cert.c_str(), 1);
  setenv("TELAR_TLS_KEY", files.key.c_str(), 1);
  setenv("TELAR_TLS_CA", files.ca.c_str(), 1);
}

std::string connection_advice(const std::string& message, const TlsFiles& files) {
  const auto says = [&message](const char* words) { return message.find(words) != std::string::npos; };
  if (says("ostname")) return "the coordinator's certificate is not for the name that was dialled";
  if (says("certificate verify failed")) {
    return absl::StrCat("the coordinator's certificate is not signed by --tls-ca ", files.ca, ", or not valid now");
  }
  if (says("wrong version number")) return "the coordinator speaks plain text there; leave --tls-ca out";
  if (says("Socket closed") && files.cert.empty() && files.ca.empty()) {
    return "does it want TLS? Give --tls-ca FILE or set TELAR_TLS_CA";
  }
  if (says("Socket closed") && !files.cert.empty()) {
    return absl::StrCat("it may refuse the certificate in ", files.cert, ": is it of the coordinator's CA, and valid?");
  }
  return "is it running? Set its address by --coordinator host:port or TELAR_COORDINATOR";
}

std::string sha256_hex(const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace telar
