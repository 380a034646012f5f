# deploy/packages.txt names the Debian packages that bring these.
find_package(Threads REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
foreach(package gRPC prometheus-cpp yaml-cpp nlohmann_json CLI11 spdlog GTest Gloo zstd)
  find_package(${package} CONFIG REQUIRED)
endforeach()
find_package(OneDnn REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

# C++ from .proto files of the distribution: gRPC's health service and Google's error details.
find_path(GRPC_PROTO_ROOT grpc/health/v1/health.proto PATH_SUFFIXES ../share/grpc-proto REQUIRED)
find_path(GOOGLE_PROTO_ROOT google/rpc/status.proto
  HINTS /usr/share/gocode/src/github.com/gogo/googleapis REQUIRED)

# CRC32C in hardware; the library has no CMake package.
find_path(ISAL_INCLUDE isa-l/crc.h REQUIRED)
find_library(ISAL_LIBRARY isal REQUIRED)
add_library(isal UNKNOWN IMPORTED)
set_target_properties(isal PROPERTIES IMPORTED_LOCATION ${ISAL_LIBRARY}
  INTERFACE_INCLUDE_DIRECTORIES ${ISAL_INCLUDE})

# Tokenizers: regular expressions with look-ahead, and Unicode's classes and normal forms. Neither has a CMake package.
find_path(PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(PCRE2_LIBRARY pcre2-8 REQUIRED)
add_library(pcre2 UNKNOWN IMPORTED)
set_target_properties(pcre2 PROPERTIES IMPORTED_LOCATION ${PCRE2_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${PCRE2_INCLUDE})
find_path(UTF8PROC_INCLUDE utf8proc.h REQUIRED)
find_library(UTF8PROC_LIBRARY utf8proc REQUIRED)
add_library(utf8proc UNKNOWN IMPORTED)
set_target_properties(utf8proc PROPERTIES IMPORTED_LOCATION ${UTF8PROC_LIBRARY}
  INTERFACE_INCLUDE_DIRECTORIES ${UTF8PROC_INCLUDE})
