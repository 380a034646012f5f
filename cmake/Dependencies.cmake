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
