// To read what SSTs and logs have where the manifest, which says what of them is the database's, cannot be read: RocksDB's repair puts
// one together, of which all that it writes is in memory.
#ifndef WEIR_REBUILT_H
#define WEIR_REBUILT_H

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/sst_file_writer.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "small.h"

namespace weir {

// Files of another file system, and beside them those that are written, which are in memory. What is deleted or renamed of the others is
// only not seen any more.
class Rebuilt : public rocksdb::FileSystemWrapper {
 public:
  using Options = rocksdb::IOOptions;
  using Debug = rocksdb::IODebugContext;
  using Status = rocksdb::IOStatus;
  using Path = const std::string&;
  using FileOptions = rocksdb::FileOptions;

  explicit Rebuilt(const std::shared_ptr<rocksdb::FileSystem>& target)
      : FileSystemWrapper(target), env_(rocksdb::NewMemEnv(rocksdb::Env::Default())), memory_(env_->GetFileSystem()) {}

  static const char* kClassName() { return "weir-rebuilt"; }
  const char* Name() const override { return kClassName(); }

  // It is not there from now on.
  void Hide(Path path) {
    const std::lock_guard<std::mutex> hold(lock_);
    hidden_.insert(path);
  }

  Status NewSequentialFile(Path path, const FileOptions& options, std::unique_ptr<rocksdb::FSSequentialFile>* result,
                           Debug* debug) override {
    const Status there = Sees(path, options.io_options, debug);
    return there.ok() ? Of(path)->NewSequentialFile(path, options, result, debug) : there;
  }

  Status NewRandomAccessFile(Path path, const FileOptions& options, std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                             Debug* debug) override {
    const Status there = Sees(path, options.io_options, debug);
    return there.ok() ? Of(path)->NewRandomAccessFile(path, options, result, debug) : there;
  }

  Status NewWritableFile(Path path, const FileOptions& options, std::unique_ptr<rocksdb::FSWritableFile>* result,
                         Debug* debug) override {
    return memory_->NewWritableFile(path, options, result, debug);
  }

  Status NewDirectory(Path path, const Options& options, std::unique_ptr<rocksdb::FSDirectory>* result, Debug* debug) override {
    memory_->CreateDirIfMissing(path, options, debug).PermitUncheckedError();
    return memory_->NewDirectory(path, options, result, debug);
  }

  Status CreateDir(Path path, const Options& options, Debug* debug) override {
    return memory_->CreateDirIfMissing(path, options, debug);
  }

  Status CreateDirIfMissing(Path path, const Options& options, Debug* debug) override {
    return memory_->CreateDirIfMissing(path, options, debug);
  }

  Status FileExists(Path path, const Options& options, Debug* debug) override {
    const Status there = Sees(path, options, debug);
    return there.ok() ? Of(path)->FileExists(path, options, debug) : there;
  }

  Status GetFileSize(Path path, const Options& options, uint64_t* size, Debug* debug) override {
    const Status there = Sees(path, options, debug);
    return there.ok() ? Of(path)->GetFileSize(path, options, size, debug) : there;
  }

  Status GetFileModificationTime(Path path, const Options& options, uint64_t* time, Debug* debug) override {
    const Status there = Sees(path, options, debug);
    return there.ok() ? Of(path)->GetFileModificationTime(path, options, time, debug) : there;
  }

  Status GetChildren(Path path, const Options& options, std::vector<std::string>* result, Debug* debug) override {
    std::vector<std::string> below, written;
    const Status listed = target()->GetChildren(path, options, &below, debug);
    const bool has_written = memory_->GetChildren(path, options, &written, debug).ok();
    if (!listed.ok() && !has_written) return listed;
    std::set<std::string> names(written.begin(), written.end());
    for (const std::string& name : below) {
      if (Sees(path + "/" + name, options, debug).ok()) names.insert(name);
    }
    result->assign(names.begin(), names.end());
    return Status::OK();
  }

  Status DeleteFile(Path path, const Options& options, Debug* debug) override {
    Hide(path);
    memory_->DeleteFile(path, options, debug).PermitUncheckedError();
    return Status::OK();
  }

  Status RenameFile(Path from, Path to, const Options& options, Debug* debug) override {
    if (IsWritten(from)) return memory_->RenameFile(from, to, options, debug);
    Hide(from);
    return Status::OK();
  }

 private:
  bool IsWritten(Path path) const { return memory_->FileExists(path, Options(), nullptr).ok(); }

  rocksdb::FileSystem* Of(Path path) const { return IsWritten(path) ? memory_.get() : target(); }

  Status Sees(Path path, const Options&, Debug*) {
    const std::lock_guard<std::mutex> hold(lock_);
    const bool sees = hidden_.count(path) == 0 || IsWritten(path);
    return sees ? Status::OK() : Status::NotFound(path);
  }

  const std::unique_ptr<rocksdb::Env> env_;
  const std::shared_ptr<rocksdb::FileSystem> memory_;
  std::mutex lock_;
  std::set<std::string> hidden_;
};

// What a repair has to say goes into no file.
class Silent : public rocksdb::Logger {
 public:
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// Beside the others an SST for each column family that there may be, which deletes a key that none has: a repair knows those only that
// have one, and passes over what logs have of others. Their numbers are as RocksDB counted them when the store was made.
inline rocksdb::Status AddFamilies(rocksdb::Env* env, rocksdb::Options options, const char* name, uint32_t count, uint64_t number) {
  const std::unique_ptr<rocksdb::Env> memory(rocksdb::NewMemEnv(rocksdb::Env::Default()));
  rocksdb::Options scratch;
  scratch.env = memory.get();
  scratch.create_if_missing = true;
  scratch.info_log = std::make_shared<Silent>();
  rocksdb::DB* opened = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(scratch, "/families", &opened);
  if (!status.ok()) return status;
  const std::unique_ptr<rocksdb::DB> db(opened);
  options.env = env;
  for (uint32_t at = 0; at < count && status.ok(); at++) {
    rocksdb::ColumnFamilyHandle* family = nullptr;
    status = db->CreateColumnFamily(scratch, name + std::to_string(at), &family);
    if (!status.ok()) break;
    rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options, family);
    status = writer.Open(std::string(kPath) + "/" + std::to_string(number + at) + ".sst");
    if (status.ok()) status = writer.Delete(rocksdb::Slice("\0", 1));
    if (status.ok()) status = writer.Finish();
    db->DestroyColumnFamilyHandle(family).PermitUncheckedError();
  }
  return status;
}

// Larger than that of any file of the database.
inline uint64_t NextNumber(const std::vector<std::string>& names) {
  uint64_t next = 1;
  for (const std::string& name : names) {
    const size_t digits = name.find_first_of("0123456789");
    if (digits != std::string::npos) next = std::max<uint64_t>(next, strtoull(name.c_str() + digits, nullptr, 10) + 1);
  }
  return next;
}

}  // namespace weir

#endif
