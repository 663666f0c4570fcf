// RocksDB's file system over a store of Weir: what rocksdb::FileSystem asks, by the functions of weir_store.h and nothing
// else. Programs that are not changed get it by preload.cc, `weir store` by engine.cc.

#include "file_system.h"

#include <rocksdb/env.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace {

using rocksdb::FileLock;
using rocksdb::FileOptions;
using rocksdb::FileSystem;
using rocksdb::FSDirectory;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSReadRequest;
using rocksdb::FSSequentialFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// The reason of a failure, as RocksDB tells apart what it can go on after. Who gave a time hears that it was over; work in
// the background, which gives none, that its I/O failed, after which RocksDB knows how to go on.
IOStatus Status(int code, const std::string& path, bool timed = false) {
  if (code == WEIR_OK) return IOStatus::OK();
  const std::string reason = std::string("weir: ") + weir_store_error();
  switch (code) {
    case WEIR_NOT_FOUND:
      // RocksDB asks for "path not found" by its subcode.
      return IOStatus::PathNotFound(path, reason);
    case WEIR_FULL:
      return IOStatus::NoSpace(path, reason);
    case WEIR_OWNED: {
      // Nothing that this process does will help.
      IOStatus fenced = IOStatus::IOFenced(path, reason);
      fenced.SetRetryable(false);
      return fenced;
    }
    case WEIR_DAMAGED:
      // RocksDB goes on without its identity, but ends the process if that is anything else than an I/O error.
      if (rocksdb::Slice(path).ends_with("/IDENTITY")) {
        return IOStatus::IOError(path, reason);
      }
      return IOStatus::Corruption(path, reason);
    case WEIR_UNREACHABLE:
      return timed ? IOStatus::TimedOut(path, reason) : IOStatus::IOError(path, reason);
    case WEIR_INVALID:
      return IOStatus::InvalidArgument(path, reason);
    default:
      return IOStatus::IOError(path, reason);
  }
}

// A pointer was null: the code is not told then, the reason is.
IOStatus NotOpened(const weir_store* store, const std::string& path) {
  const std::string reason = std::string("weir: ") + weir_store_error();
  weir_found found;
  if (weir_store_find(store, path.c_str(), &found) == WEIR_NOT_FOUND) {
    return IOStatus::PathNotFound(path, reason);
  }
  return IOStatus::IOError(path, reason);
}

using Clock = std::chrono::steady_clock;

// Of this thread; the clock's beginning if it waits as long as the store does.
thread_local Clock::time_point patience_ends;

struct Reader {
  explicit Reader(weir_reader* given) : reader(given) {}
  ~Reader() { weir_reader_free(reader); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  IOStatus Read(const std::string& path, uint64_t offset, size_t n, const IOOptions& options,
                Slice* result, char* scratch) const {
    size_t done = 0;
    const uint64_t micros = Micros(options);
    const int code = weir_reader_read(reader, offset, scratch, n, micros, &done);
    *result = Slice(scratch, done);
    return Status(code, path, micros > 0);
  }

  void ReadMany(const std::string& path, FSReadRequest* requests, size_t count,
                const IOOptions& options) const {
    std::vector<weir_read> reads;
    reads.reserve(count);
    for (size_t at = 0; at < count; at++) {
      reads.push_back({requests[at].offset, requests[at].scratch, requests[at].len, 0, WEIR_OK});
    }
    const uint64_t micros = Micros(options);
    weir_reader_read_many(reader, reads.data(), count, micros);
    for (size_t at = 0; at < count; at++) {
      requests[at].result = Slice(requests[at].scratch, reads[at].done);
      requests[at].status = Status(reads[at].code, path, micros > 0);
    }
  }

  // 0 of who waits as long as the store does.
  static uint64_t Micros(const IOOptions& options) {
    if (options.timeout.count() > 0) return static_cast<uint64_t>(options.timeout.count());
    if (patience_ends == Clock::time_point()) return 0;
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(patience_ends - Clock::now());
    return static_cast<uint64_t>(std::max<int64_t>(left.count(), 1));
  }

  weir_reader* reader;
};

class SequentialFile : public FSSequentialFile {
 public:
  SequentialFile(std::string path, weir_reader* reader)
      : path_(std::move(path)), reader_(reader) {}

  IOStatus Read(size_t n, const IOOptions& options, Slice* result, char* scratch,
                IODebugContext*) override {
    IOStatus status = reader_.Read(path_, offset_, n, options, result, scratch);
    offset_ += result->size();
    return status;
  }

  IOStatus Skip(uint64_t n) override {
    offset_ += n;
    return IOStatus::OK();
  }

 private:
  std::string path_;
  Reader reader_;
  uint64_t offset_ = 0;
};

class RandomAccessFile : public FSRandomAccessFile {
 public:
  RandomAccessFile(std::string path, weir_reader* reader)
      : path_(std::move(path)), reader_(reader) {}

  IOStatus Read(uint64_t offset, size_t n, const IOOptions& options, Slice* result, char* scratch,
                IODebugContext*) const override {
    return reader_.Read(path_, offset, n, options, result, scratch);
  }

  // Of one thread's MultiGet: a file of several raw blocks is read from as many units at a time.
  IOStatus MultiRead(FSReadRequest* requests, size_t count, const IOOptions& options,
                     IODebugContext*) override {
    reader_.ReadMany(path_, requests, count, options);
    return IOStatus::OK();
  }

  // A number is never given to another file, so cached blocks of it are good for ever.
  size_t GetUniqueId(char* id, size_t max_size) const override {
    const uint64_t unique = weir_reader_unique(reader_.reader);
    if (max_size < 2 * sizeof unique) return 0;
    memcpy(id, "weirfile", sizeof unique);
    memcpy(id + sizeof unique, &unique, sizeof unique);
    return 2 * sizeof unique;
  }

 private:
  std::string path_;
  Reader reader_;
};

// A folder, without the slashes at its end.
std::string Plain(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

// Where this thread synced a log just now. RocksDB syncs the folder of a new log next, with every put waiting: for the log's
// name, and not for the tables there that are on their way, which the manifest waits for. A log that was synced already is only
// flushed then: a thread that flushes a memtable does so with the logs before it, while puts wait until it has done.
thread_local std::string log_synced_in;

// The folder of a log; empty for any other file.
std::string LogFolder(const std::string& path) {
  const bool is_log = rocksdb::Slice(path).ends_with(".log");
  return is_log ? Plain(path.substr(0, path.rfind('/') + 1)) : "";
}

class WritableFile : public FSWritableFile {
 public:
  WritableFile(std::string path, const FileOptions& options, weir_writer* writer)
      : FSWritableFile(options), path_(std::move(path)), log_folder_(LogFolder(path_)), writer_(writer) {}

  ~WritableFile() override {
    if (!closed_) weir_writer_close(writer_);
    weir_writer_free(writer_);
  }

  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    return Status(weir_writer_append(writer_, data.data(), data.size()), path_);
  }

  // RocksDB asks for the size that it has written when it closes a file that it made larger before; there are none.
  IOStatus Truncate(uint64_t size, const IOOptions&, IODebugContext*) override {
    if (size == weir_writer_size(writer_)) return IOStatus::OK();
    return IOStatus::NotSupported(path_, "weir: a file that is being written is not shortened");
  }

  IOStatus Flush(const IOOptions&, IODebugContext*) override {
    log_synced_in = log_folder_;
    return Status(weir_writer_push(writer_), path_);
  }

  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    log_synced_in = log_folder_;
    return Status(weir_writer_sync(writer_), path_);
  }

  IOStatus Close(const IOOptions&, IODebugContext*) override {
    if (closed_) return IOStatus::OK();
    closed_ = true;
    return Status(weir_writer_close(writer_), path_);
  }

  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override {
    return weir_writer_size(writer_);
  }

 private:
  std::string path_;
  std::string log_folder_;
  weir_writer* writer_;
  bool closed_ = false;
};

class Directory : public FSDirectory {
 public:
  Directory(const weir_store* store, std::string path) : store_(store), path_(std::move(path)) {}

  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    const bool is_for_log = log_synced_in == Plain(path_);
    log_synced_in.clear();
    return Status(is_for_log ? weir_store_sync_names(store_) : weir_store_sync(store_, path_.c_str()), path_);
  }

  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  const weir_store* store_;
  std::string path_;
};

// What RocksDB says of itself, for people. What cannot be written of it is left out: RocksDB's own writer ends the program
// when a line fails, before it can say why.
class InfoLog : public rocksdb::Logger {
 public:
  explicit InfoLog(weir_writer* writer) : writer_(writer) {}

  ~InfoLog() override {
    weir_writer_close(writer_);
    weir_writer_free(writer_);
  }

  using Logger::Logv;
  void Logv(const char* format, va_list words) override {
    va_list again;
    va_copy(again, words);
    const int count = vsnprintf(nullptr, 0, format, again);
    va_end(again);
    if (count < 0) return;
    std::string line(static_cast<size_t>(count) + 1, '\0');
    vsnprintf(line.data(), line.size(), format, words);
    line.resize(static_cast<size_t>(count));
    if (line.empty() || line.back() != '\n') line.push_back('\n');
    const auto now = std::chrono::system_clock::now();
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch());
    std::tm parts = {};
    char head[64];
    localtime_r(&seconds, &parts);
    const size_t day = strftime(head, sizeof head, "%Y/%m/%d-%H:%M:%S", &parts);
    snprintf(head + day, sizeof head - day, ".%06d ", static_cast<int>(micros.count() % 1000000));
    line.insert(0, head);

    const std::lock_guard<std::mutex> held(mutex_);
    failed_ = failed_ || weir_writer_append(writer_, line.data(), line.size()) != WEIR_OK;
    if (now - pushed_ >= std::chrono::seconds(5)) Push();
  }

  void Flush() override {
    const std::lock_guard<std::mutex> held(mutex_);
    Push();
  }

  size_t GetLogFileSize() const override {
    const std::lock_guard<std::mutex> held(mutex_);
    return weir_writer_size(writer_);
  }

 private:
  void Push() {
    failed_ = failed_ || weir_writer_push(writer_) != WEIR_OK;
    pushed_ = std::chrono::system_clock::now();
  }

  mutable std::mutex mutex_;
  weir_writer* const writer_;
  bool failed_ = false;
  std::chrono::system_clock::time_point pushed_ = std::chrono::system_clock::now();
};

class Lock : public FileLock {
 public:
  explicit Lock(std::string given) : path(std::move(given)) {}
  const std::string path;
};

class WeirFileSystem : public FileSystem {
 public:
  explicit WeirFileSystem(weir_store* store) : store_(store) {}
  ~WeirFileSystem() override { weir_store_close(store_); }

  static const char* kClassName() { return "weir"; }
  const char* Name() const override { return kClassName(); }

  IOStatus NewSequentialFile(const std::string& path, const FileOptions&,
                             std::unique_ptr<FSSequentialFile>* result,
                             IODebugContext*) override {
    return Opened<SequentialFile>(path, result);
  }

  IOStatus NewRandomAccessFile(const std::string& path, const FileOptions&,
                               std::unique_ptr<FSRandomAccessFile>* result,
                               IODebugContext*) override {
    return Opened<RandomAccessFile>(path, result);
  }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* result, IODebugContext*) override {
    return Written(path, options, 0, result);
  }

  IOStatus ReopenWritableFile(const std::string& path, const FileOptions& options,
                              std::unique_ptr<FSWritableFile>* result,
                              IODebugContext*) override {
    return Written(path, options, 1, result);
  }

  IOStatus NewDirectory(const std::string& path, const IOOptions&,
                        std::unique_ptr<FSDirectory>* result, IODebugContext*) override {
    result->reset();
    weir_found found;
    const int code = weir_store_find(store_, path.c_str(), &found);
    if (code != WEIR_OK) return Status(code, path);
    if (!found.folder) return IOStatus::IOError(path, "weir: is a file, not a folder");
    result->reset(new Directory(store_, path));
    return IOStatus::OK();
  }

  IOStatus FileExists(const std::string& path, const IOOptions&, IODebugContext*) override {
    const int code = weir_store_find(store_, path.c_str(), nullptr);
    return code == WEIR_NOT_FOUND ? IOStatus::NotFound(path) : Status(code, path);
  }

  IOStatus GetChildren(const std::string& path, const IOOptions&,
                       std::vector<std::string>* result, IODebugContext*) override {
    result->clear();
    const auto add = [](void* names, const char* name) {
      static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    };
    const int code = weir_store_children(store_, path.c_str(), add, result);
    return code == WEIR_NOT_FOUND ? IOStatus::NotFound(path) : Status(code, path);
  }

  IOStatus DeleteFile(const std::string& path, const IOOptions&, IODebugContext*) override {
    return Status(weir_store_delete(store_, path.c_str()), path);
  }

  IOStatus Truncate(const std::string& path, size_t size, const IOOptions&,
                    IODebugContext*) override {
    return Status(weir_store_truncate(store_, path.c_str(), size), path);
  }

  IOStatus CreateDir(const std::string& path, const IOOptions&, IODebugContext*) override {
    if (weir_store_find(store_, path.c_str(), nullptr) == WEIR_OK) {
      return IOStatus::IOError(path, "weir: it is there already");
    }
    return Status(weir_store_create_folder(store_, path.c_str()), path);
  }

  IOStatus CreateDirIfMissing(const std::string& path, const IOOptions&,
                              IODebugContext*) override {
    return Status(weir_store_create_folder(store_, path.c_str()), path);
  }

  IOStatus DeleteDir(const std::string& path, const IOOptions&, IODebugContext*) override {
    return Status(weir_store_delete_folder(store_, path.c_str()), path);
  }

  IOStatus GetFileSize(const std::string& path, const IOOptions&, uint64_t* size,
                       IODebugContext*) override {
    return Found(path, &weir_found::size, size);
  }

  IOStatus GetFileModificationTime(const std::string& path, const IOOptions&, uint64_t* time,
                                   IODebugContext*) override {
    return Found(path, &weir_found::modified, time);
  }

  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions&,
                      IODebugContext*) override {
    return Status(weir_store_rename(store_, from.c_str(), to.c_str()), from);
  }

  // The store has one owner, so a lock of a database is one within this process.
  IOStatus LockFile(const std::string& path, const IOOptions&, FileLock** lock,
                    IODebugContext*) override {
    *lock = nullptr;
    const std::lock_guard<std::mutex> held(mutex_);
    if (!locked_.insert(path).second) {
      return IOStatus::IOError("lock " + path, "weir: this process has it already");
    }
    *lock = new Lock(path);
    return IOStatus::OK();
  }

  IOStatus UnlockFile(FileLock* lock, const IOOptions&, IODebugContext*) override {
    const std::unique_ptr<Lock> ours(static_cast<Lock*>(lock));
    const std::lock_guard<std::mutex> held(mutex_);
    locked_.erase(ours->path);
    return IOStatus::OK();
  }

  IOStatus NewLogger(const std::string& path, const IOOptions&,
                     std::shared_ptr<rocksdb::Logger>* result, IODebugContext*) override {
    result->reset();
    weir_writer* writer = weir_store_writer(store_, path.c_str(), 0);
    if (writer == nullptr) return IOStatus::IOError(path, std::string("weir: ") + weir_store_error());
    result->reset(new InfoLog(writer));
    return IOStatus::OK();
  }

  IOStatus GetTestDirectory(const IOOptions&, std::string* path, IODebugContext*) override {
    *path = "/test";
    return Status(weir_store_create_folder(store_, path->c_str()), *path);
  }

  IOStatus GetAbsolutePath(const std::string& path, const IOOptions&, std::string* absolute,
                           IODebugContext*) override {
    *absolute = path.empty() || path[0] != '/' ? "/" + path : path;
    return IOStatus::OK();
  }

  IOStatus IsDirectory(const std::string& path, const IOOptions&, bool* folder,
                       IODebugContext*) override {
    weir_found found;
    const int code = weir_store_find(store_, path.c_str(), &found);
    *folder = code == WEIR_OK && found.folder;
    return Status(code, path);
  }

  IOStatus AreFilesSame(const std::string& first, const std::string& second, const IOOptions&,
                        bool* same, IODebugContext*) override {
    *same = first == second;
    return IOStatus::OK();
  }

  // Of the small volume: what is free of the raw units, `weir status` tells.
  IOStatus GetFreeSpace(const std::string&, const IOOptions&, uint64_t* free,
                        IODebugContext*) override {
    *free = weir_store_free_small_bytes(store_);
    return IOStatus::OK();
  }

 private:
  template <class File, class Base>
  IOStatus Opened(const std::string& path, std::unique_ptr<Base>* result) {
    result->reset();
    weir_reader* reader = weir_store_reader(store_, path.c_str());
    if (reader == nullptr) return NotOpened(store_, path);
    result->reset(new File(path, reader));
    return IOStatus::OK();
  }

  IOStatus Written(const std::string& path, const FileOptions& options, int go_on,
                   std::unique_ptr<FSWritableFile>* result) {
    result->reset();
    weir_writer* writer = weir_store_writer(store_, path.c_str(), go_on);
    if (writer == nullptr) return IOStatus::IOError(path, std::string("weir: ") + weir_store_error());
    result->reset(new WritableFile(path, options, writer));
    return IOStatus::OK();
  }

  IOStatus Found(const std::string& path, uint64_t weir_found::*field, uint64_t* value) {
    weir_found found = {};
    const int code = weir_store_find(store_, path.c_str(), &found);
    *value = found.*field;
    return Status(code, path);
  }

  weir_store* const store_;
  std::mutex mutex_;
  std::set<std::string> locked_;
};

}  // namespace

weir::Patience::Patience(std::chrono::microseconds time) : time_(time) { Renew(); }
weir::Patience::~Patience() { patience_ends = Clock::time_point(); }
void weir::Patience::Renew() { patience_ends = Clock::now() + time_; }

std::shared_ptr<FileSystem> weir::FileSystemOf(weir_store* store) {
  return std::make_shared<WeirFileSystem>(store);
}
