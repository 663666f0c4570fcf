// The file system for programs that are not changed: loaded before one, it registers itself as weir:// with RocksDB; with
// WEIR_STORE_DEFAULT=1 it also stands in for the file system that a program gets which names none.
//
// Where the store is, the environment says: `weir rocksdb` sets it (docs/store.md).

#include <rocksdb/utilities/object_registry.h>

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <unistd.h>
#include <memory>
#include <mutex>
#include <string>

#include "file_system.h"

namespace {

using rocksdb::FileSystem;

const char* Setting(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// One store for all of a process, as long as anything uses it.
std::shared_ptr<FileSystem> TheFileSystem(std::string* reason) {
  static std::mutex mutex;
  static std::weak_ptr<FileSystem> known;
  const std::lock_guard<std::mutex> held(mutex);
  if (std::shared_ptr<FileSystem> there = known.lock()) return there;
  const char* units = Setting("WEIR_STORE_UNITS");
  // Set, but empty, for a block volume in place of units.
  const char* control = getenv("WEIR_STORE_CONTROL");
  const char* volume = Setting("WEIR_STORE_VOLUME");
  if (units == nullptr || control == nullptr || volume == nullptr) {
    *reason = "weir: WEIR_STORE_UNITS, WEIR_STORE_CONTROL and WEIR_STORE_VOLUME say where the store is: start "
              "the program by `weir rocksdb`, which sets them";
    return nullptr;
  }
  const int how = Setting("WEIR_STORE_NEW") != nullptr ? WEIR_NEW : 0;
  weir_store* store = weir_store_open(units, control, Setting("WEIR_STORE_TOKEN"), volume, how);
  if (store == nullptr) {
    *reason = std::string("weir: ") + weir_store_error();
    return nullptr;
  }
  const std::shared_ptr<FileSystem> made = weir::FileSystemOf(store);
  known = made;
  return made;
}

// What a registry owns by itself, of a file system that others have too.
class Shared : public rocksdb::FileSystemWrapper {
 public:
  explicit Shared(const std::shared_ptr<FileSystem>& target) : FileSystemWrapper(target) {}
  const char* Name() const override { return "weir-shared"; }
};

const bool registered = [] {
  const auto name = rocksdb::ObjectLibrary::PatternEntry("weir", false).AddSeparator("://", false);
  rocksdb::ObjectLibrary::Default()->AddFactory<FileSystem>(
      name, [](const std::string&, std::unique_ptr<FileSystem>* made, std::string* reason) {
        const std::shared_ptr<FileSystem> there = TheFileSystem(reason);
        if (there == nullptr) return static_cast<FileSystem*>(nullptr);
        made->reset(new Shared(there));
        return made->get();
      });
  return true;
}();

}  // namespace

// For programs that name no file system, with WEIR_STORE_DEFAULT=1: they get the store, or do not start.
__attribute__((visibility("default"))) std::shared_ptr<rocksdb::FileSystem>
rocksdb::FileSystem::Default() {
  using Function = std::shared_ptr<FileSystem> (*)();
  static const Function real = reinterpret_cast<Function>(
      dlsym(RTLD_NEXT, "_ZN7rocksdb10FileSystem7DefaultEv"));
  if (Setting("WEIR_STORE_DEFAULT") == nullptr) return real();
  static const std::shared_ptr<FileSystem>* const store = [] {
    std::string reason;
    std::shared_ptr<FileSystem> there = TheFileSystem(&reason);
    if (there == nullptr) {
      fprintf(stderr, "%s\n", reason.c_str());
      _exit(2);
    }
    return new std::shared_ptr<FileSystem>(std::move(there));
  }();
  return *store;
}
