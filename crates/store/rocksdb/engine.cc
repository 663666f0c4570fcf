// The engine of `weir store`: one RocksDB whose column families are the slices, its SSTs on raw units. What a key means,
// crates/store/src/services knows; here are only bytes.

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/statistics.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "file_system.h"
#include "left.h"
#include "options.h"
#include "rebuilt.h"
#include "small.h"
#include "weir_engine.h"

namespace {

using rocksdb::ColumnFamilyDescriptor;
using rocksdb::ColumnFamilyHandle;
using rocksdb::ColumnFamilyOptions;
using rocksdb::DB;
using rocksdb::Options;
using rocksdb::Slice;
using rocksdb::Status;
using weir::Damages;
using weir::DatabaseOptions;
using weir::kPath;
using weir::kReadAheadBytes;
using weir::SliceOptions;

const char* const kSlice = "slice-";

// How long the units may take to answer a read of an SST while a damaged store is opened.
constexpr std::chrono::minutes kOpenTime{2};
// After a write that found no room, and one that found none again.
constexpr std::chrono::seconds kResumeAgain{1};
// With less of the small volume left behind a batch, what is in memory is flushed first, and with half of it the batch is refused:
// the next opening needs some for a manifest.
constexpr uint64_t kSmallLeftBytes = 1 << 20;
// With less left one batch is written at a time, so that each knows what is left.
constexpr uint64_t kSmallLittleBytes = 32 << 20;
// What an SST has beside its keys and values, at most: such a part of a raw block. Small ones take more than that in memory.
constexpr uint64_t kIndexShare = 64;
// Slices that a store may have (service.rs), and what it says of itself, which has their number.
constexpr uint32_t kSlicesMax = 64;
const char* const kHead = "store";
// Each opening begins a log, which takes some of the small volume until all of it is flushed: with so many of them all is.
constexpr size_t kLogsMax = 16;
// How long a batch waits for logs to be gone whose content lies on the units.
constexpr std::chrono::seconds kLogsGone{2};

int CodeOf(const Status& status) {
  if (status.ok()) return WEIR_OK;
  if (status.IsNoSpace()) return WEIR_FULL;
  if (status.IsCorruption()) return WEIR_DAMAGED;
  if (status.IsIOFenced()) return WEIR_OWNED;
  if (status.IsNotFound()) return WEIR_NOT_FOUND;
  if (status.IsTimedOut()) return WEIR_UNREACHABLE;
  if (status.IsInvalidArgument() || status.IsNotSupported()) return WEIR_INVALID;
  return WEIR_IO;
}

int Told(const Status& status, char** reason) {
  if (!status.ok()) *reason = strdup(status.ToString().c_str());
  return CodeOf(status);
}

struct Change {
  uint8_t kind;
  uint32_t slice;
  Slice key;
  Slice value;
};

// Bytes of keys and values for each slice.
using Added = std::map<uint32_t, uint64_t>;

uint32_t Number(const uint8_t* bytes) {
  return bytes[0] | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 | uint32_t{bytes[3]} << 24;
}

// The next change of a batch, which is cut off it; false if what is left is none.
bool Next(Slice* changes, Change* change) {
  constexpr size_t kHead = 13;
  if (changes->size() < kHead) return false;
  const auto* head = reinterpret_cast<const uint8_t*>(changes->data());
  *change = {head[0], Number(head + 1), Slice(), Slice()};
  const size_t key = Number(head + 5), value = Number(head + 9);
  if (changes->size() - kHead < key || changes->size() - kHead - key < value) return false;
  change->key = Slice(changes->data() + kHead, key);
  change->value = Slice(changes->data() + kHead + key, value);
  changes->remove_prefix(kHead + key + value);
  return true;
}

// An SST that cannot be read at all, and the keys that it had; or a log that cannot be read whole, without keys.
struct Missing {
  uint32_t slice;
  std::string name, why, smallest, largest;

  bool IsLog() const { return largest.empty(); }
};

// The files of a store that miss raw blocks, and what is known of each.
Damages MissingOf(const weir_store* store) {
  Damages missing;
  const auto add = [](void* to, const char* path, const char* why) { (*static_cast<Damages*>(to))[path] = why; };
  weir_store_missing(store, add, &missing);
  return missing;
}

std::string ToldMissing(const Damages& missing) {
  constexpr size_t kTold = 3;
  std::string told = std::to_string(missing.size()) + " files of the store miss raw blocks: ";
  size_t count = 0;
  for (const auto& [path, why] : missing) {
    if (count == kTold) break;
    told += (count++ == 0 ? "" : "; ") + path + ": " + why;
  }
  if (missing.size() > kTold) told += "; and more";
  return told +
         ": nothing is written or erased there. Serve the units that the store was written to, as they were last; or read "
         "what is left: weir store serve --damaged";
}

// Knows whether RocksDB takes writes. After one for which there was no room it takes none until it is told to go on.
class Errors : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, Status* status) override {
    if (status->severity() == Status::kSoftError) return;
    const std::lock_guard<std::mutex> hold(lock_);
    why_ = *status;
  }

  void Gone() {
    const std::lock_guard<std::mutex> hold(lock_);
    why_ = Status::OK();
  }

  Status Why() const {
    const std::lock_guard<std::mutex> hold(lock_);
    return why_;
  }

 private:
  mutable std::mutex lock_;
  Status why_;
};

}  // namespace

struct weir_engine {
  std::shared_ptr<rocksdb::FileSystem> files;
  // The same, if what is left is read.
  std::shared_ptr<weir::WhatIsLeft> left;
  // As long as its files.
  const weir_store* store = nullptr;
  std::shared_ptr<rocksdb::Statistics> statistics;
  std::unique_ptr<rocksdb::Env> env;
  ColumnFamilyOptions slice_options;
  uint64_t block_bytes = 0;
  std::unique_ptr<DB> db;
  ColumnFamilyHandle* own = nullptr;
  std::vector<ColumnFamilyHandle*> slices;
  std::shared_ptr<Errors> errors = std::make_shared<Errors>();
  std::atomic<int64_t> resume_after{0};
  std::mutex making_room;
  std::chrono::microseconds read_time{0};
  // Nothing is written: of these only what is in others is read.
  bool reads_left = false, finds_older = false;
  // Its manifest was put together of what there is: all SSTs are of level 0, and what of a key is newest an iterator alone knows.
  bool is_rebuilt = false;
  std::vector<Missing> missing;
  // SSTs of which a part could not be read, and was passed over. Changed while it is open, with the lock.
  std::mutex torn_lock;
  Damages torn;

  ~weir_engine() {
    if (db == nullptr) return;
    for (ColumnFamilyHandle* slice : slices) db->DestroyColumnFamilyHandle(slice);
    if (own != nullptr) db->DestroyColumnFamilyHandle(own);
    db->Close();
  }

  ColumnFamilyHandle* Family(uint32_t slice) const {
    if (slice == WEIR_ENGINE_OWN) return own;
    return slice < slices.size() ? slices[slice] : nullptr;
  }

  static Status NoSlice(uint32_t slice) {
    return Status::InvalidArgument("no slice " + std::to_string(slice));
  }

  Options OptionsOf() const {
    Options options(rocksdb::DBOptions(), slice_options);
    options.env = env.get();
    return options;
  }

  // What of an SST is there is none, or another's.
  Status Sound(const std::string& path, const std::string& identity) const {
    rocksdb::SstFileReader reader(OptionsOf());
    Status status = reader.Open(path);
    if (!status.ok()) return status;
    const auto properties = reader.GetTableProperties();
    const uint64_t number = strtoull(path.c_str() + path.rfind('/') + 1, nullptr, 10);
    const bool is_own = identity.empty() || properties->db_id.empty() || properties->db_id == identity;
    if (properties->orig_file_number == number && is_own) return status;
    return Status::Corruption("what lies there was written as " +
                              std::to_string(properties->orig_file_number) + ".sst" +
                              (is_own ? "" : " of another database"));
  }

  // Those that RocksDB would not open for are missing, too. Units that do not answer are no damage.
  Status AddUnsound(Damages* missing) const {
    std::vector<std::string> names;
    Status listed = env->GetChildren(kPath, &names);
    if (!listed.ok()) return listed;
    std::string identity;
    // Without it they are told apart by their numbers alone.
    ReadFileToString(env.get(), std::string(kPath) + "/IDENTITY", &identity).PermitUncheckedError();
    weir::Patience patience(kOpenTime);
    for (const std::string& name : names) {
      const std::string path = std::string(kPath) + "/" + name;
      if (!Slice(name).ends_with(".sst") || missing->count(path) > 0) continue;
      patience.Renew();
      const Status sound = Sound(path, identity);
      if (sound.IsTimedOut()) return sound;
      if (!sound.ok()) (*missing)[path] = sound.ToString();
    }
    return Status::OK();
  }

  // What is not all there is hollow from now on.
  Status Hollow(const Damages& paths, bool older) {
    std::string table;
    const Status made = weir::HollowTable(Options(rocksdb::DBOptions(), slice_options), older, &table);
    if (!made.ok()) return made;
    left = std::make_shared<weir::WhatIsLeft>(files, paths, table, older);
    files = left;
    env = rocksdb::NewCompositeEnv(files);
    return Status::OK();
  }

  // To read what is left. With `older` also what nobody knows to be what was written last.
  Status Leave(Damages* missing, bool older) {
    const uint64_t newer = weir_store_count(store, "newer_raw_blocks");
    if (newer > 0 && !older) {
      return Status::Aborted("the small volume was set back, or lost its journal: the units hold " + std::to_string(newer) +
                             " raw blocks that are newer than all that it knows, so whatever is read may be older than "
                             "what was written last: restore it as it was last; or read that: weir store serve "
                             "--damaged=older");
    }
    const Status found = AddUnsound(missing);
    return found.ok() ? Hollow(*missing, older) : found;
  }

  // Which keys are missing with them, and what of the logs.
  void NoteMissing(const Damages& paths) {
    if (left != nullptr) {
      for (const auto& [path, why] : left->Logs()) {
        if (!why.empty()) missing.push_back({WEIR_ENGINE_OWN, path.substr(path.rfind('/') + 1), why, "", ""});
      }
    }
    std::vector<rocksdb::LiveFileMetaData> live;
    db->GetLiveFilesMetaData(&live);
    for (const rocksdb::LiveFileMetaData& file : live) {
      const auto found = paths.find(std::string(kPath) + "/" + file.relative_filename);
      if (found == paths.end()) continue;
      missing.push_back({SliceOf(file.column_family_name), file.relative_filename, found->second,
                         file.smallestkey, file.largestkey});
    }
  }

  // A key that is in none of the others may have been in one that is missing.
  Status MayBeMissing(uint32_t slice, const Slice& key) const {
    for (const Missing& file : missing) {
      if (file.slice != slice || key.compare(file.smallest) < 0 || key.compare(file.largest) > 0) continue;
      return Status::Corruption(file.name + " may have had it: " + file.why);
    }
    return Status::OK();
  }

  // What is left of a range goes on behind a part of an SST that cannot be read; false if there is none from `at` on.
  bool PassTorn(ColumnFamilyHandle* family, weir::Patience* patience, std::string* at) {
    if (!reads_left) return false;
    const weir::Torn found = weir::TornBehind(db.get(), family, OptionsOf(), *at, patience);
    if (found.name.empty()) return false;
    *at = found.next;
    const std::lock_guard<std::mutex> hold(torn_lock);
    torn[found.name] = found.why;
    return true;
  }

  // The last key of a file that is missing. RocksDB ends what the file deletes in a range just before older values of that one.
  bool EndsMissing(uint32_t slice, const Slice& key) const {
    const auto ends = [&](const Missing& file) { return file.slice == slice && key == file.largest; };
    return !finds_older && std::any_of(missing.begin(), missing.end(), ends);
  }

  uint32_t SliceOf(const std::string& family) const {
    for (uint32_t number = 0; number < slices.size(); number++) {
      if (slices[number]->GetName() == family) return number;
    }
    return WEIR_ENGINE_OWN;
  }

  // The column families that there are, those of a new database if there is none.
  Status Listed(const rocksdb::DBOptions& options, std::vector<std::string>* names) const {
    if (weir::IsThere(env.get(), weir::kCurrent)) return DB::ListColumnFamilies(options, kPath, names);
    std::vector<std::string> all;
    const Status found = env->GetChildren(kPath, &all);
    if (!found.ok() && !found.IsNotFound()) return found;
    // RocksDB makes that one first, and would take them for what a failed job left.
    const auto is_later = [](const std::string& name) { return Slice(name).ends_with(".sst") || Slice(name).ends_with(".log"); };
    if (std::any_of(all.begin(), all.end(), is_later)) return Status::Corruption(weir::kCurrent, "it is not there, and SSTs or logs are");
    if (reads_left) return Status::InvalidArgument("there is no database of which something could be left");
    names->push_back(rocksdb::kDefaultColumnFamilyName);
    return Status::OK();
  }

  // The database of all SSTs and logs that there are, as its manifest cannot be read.
  Status Rebuild(rocksdb::DBOptions options, const Damages& unsound, const Status& why) {
    auto rebuilt = std::make_shared<weir::Rebuilt>(files);
    for (const auto& [path, damage] : unsound) {
      rebuilt->Hide(path);
      missing.push_back({WEIR_ENGINE_OWN, path.substr(path.rfind('/') + 1), damage, "", ""});
    }
    missing.push_back({WEIR_ENGINE_OWN, "MANIFEST", why.ToString() + ": what is read is what SSTs and logs have", "", ""});
    files = rebuilt;
    env = rocksdb::NewCompositeEnv(files);
    std::vector<std::string> names, tables;
    Status status = env->GetChildren(kPath, &names);
    if (status.ok()) status = env->CreateDirIfMissing(kPath);
    if (status.ok()) status = weir::AddFamilies(env.get(), OptionsOf(), kSlice, kSlicesMax, weir::NextNumber(names));
    if (status.ok()) status = weir::Named(env.get(), "", ".sst", &tables);
    options.env = env.get();
    options.info_log = std::make_shared<weir::Silent>();
    if (status.ok()) status = rocksdb::RepairDB(kPath, Options(options, slice_options));
    // Those that it could not read whole are gone for it.
    for (const std::string& name : tables) {
      if (weir::IsThere(env.get(), std::string(kPath) + "/" + name)) continue;
      missing.push_back({WEIR_ENGINE_OWN, name, "it cannot be read whole, and nothing says what of it counts", "", ""});
    }
    is_rebuilt = true;
    return status;
  }

  // A key of a database whose manifest was put together.
  Status Newest(const rocksdb::ReadOptions& options, ColumnFamilyHandle* family, const Slice& key, rocksdb::PinnableSlice* value) const {
    const std::unique_ptr<rocksdb::Iterator> at(db->NewIterator(options, family));
    at->Seek(key);
    if (!at->Valid() || at->key() != key) return at->status().ok() ? Status::NotFound() : at->status();
    value->PinSelf(at->value());
    return Status::OK();
  }

  Status Get(const rocksdb::ReadOptions& options, ColumnFamilyHandle* family, const Slice& key, rocksdb::PinnableSlice* value) const {
    return is_rebuilt ? Newest(options, family, key, value) : db->Get(options, family, key, value);
  }

  Status Open(uint64_t small_bytes, const Damages& unsound) {
    rocksdb::DBOptions options = DatabaseOptions(env.get(), small_bytes, store);
    // A hollow table has not the id that the manifest knows.
    options.verify_sst_unique_id_in_manifest = !reads_left;
    if (finds_older) options.wal_recovery_mode = rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords;
    options.statistics = statistics;
    options.listeners.push_back(errors);
    std::vector<std::string> names;
    Status listed = Listed(options, &names);
    if (finds_older && !listed.ok() && weir::SmallOf(listed) != weir::Small::kOther) {
      const Status made = Rebuild(options, unsound, listed);
      if (!made.ok()) return made;
      options.env = env.get();
      listed = Listed(options, &names);
    }
    if (!listed.ok()) return listed;
    std::vector<ColumnFamilyDescriptor> families;
    for (const std::string& name : names) families.emplace_back(name, slice_options);
    std::vector<ColumnFamilyHandle*> handles;
    DB* opened = nullptr;
    Status status = reads_left ? DB::OpenForReadOnly(options, kPath, families, &handles, &opened)
                               : DB::Open(options, kPath, families, &handles, &opened);
    if (!status.ok()) return status;
    db.reset(opened);
    slices.resize(handles.size() - 1);
    for (ColumnFamilyHandle* handle : handles) {
      const std::string& name = handle->GetName();
      if (name == rocksdb::kDefaultColumnFamilyName) {
        own = handle;
        continue;
      }
      const bool named = name.rfind(kSlice, 0) == 0;
      const size_t number = named ? strtoul(name.c_str() + strlen(kSlice), nullptr, 10) : SIZE_MAX;
      if (number >= slices.size() || slices[number] != nullptr) {
        return Status::Corruption("the database holds " + name + ", which is no slice of its number");
      }
      slices[number] = handle;
    }
    rocksdb::PinnableSlice head;
    if (is_rebuilt && Newest(rocksdb::ReadOptions(), own, kHead, &head).IsNotFound()) {
      return Status::Corruption("neither SSTs nor logs have what the store says of itself: how many slices it had is not known");
    }
    return Status::OK();
  }

  // What to do after it did not open.
  const char* Mend(const Status& status) const {
    if (!(status.IsCorruption() || status.IsIOError())) return "";
    const weir::Small of = weir::SmallOf(status);
    if (of == weir::Small::kSaidElsewhere) return ": what it says other files say too: weir store repair makes it anew";
    if (finds_older) return "";
    if (of == weir::Small::kManifest) {
      return ": which SSTs are the database's only it says: restore the small volume from a copy, or read what SSTs and logs "
             "have, which may be older than what was written last: weir store serve --damaged=older";
    }
    const std::string told = status.ToString();
    if (told.find(".log") != std::string::npos || told.find("WAL") != std::string::npos) {
      return ": what of it is what was written last nobody knows then: restore what is damaged there, or read what is left, which "
             "may be older: weir store serve --damaged=older";
    }
    return reads_left ? ": nothing can be read without it: restore the small volume from a copy"
                      : ": restore what is damaged there, or read what is left: weir store serve --damaged";
  }

  // RocksDB writes no more once it found no room. There may be some again: erased meanwhile, or another's.
  bool Resumes() {
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    int64_t after = resume_after.load();
    const int64_t next = now + std::chrono::nanoseconds(kResumeAgain).count();
    if (now < after || !resume_after.compare_exchange_strong(after, next)) return false;
    if (!db->Resume().ok()) return false;
    errors->Gone();
    return true;
  }

  uint64_t MemoryBytes() const {
    uint64_t sum = 0, value = 0;
    for (ColumnFamilyHandle* slice : slices) {
      if (db->GetIntProperty(slice, DB::Properties::kCurSizeAllMemTables, &value)) sum += value;
    }
    return sum;
  }

  // RocksDB begins to flush when its logs are as long as they may be, and takes writes meanwhile: a small volume is full before
  // the logs are gone, and a log that is cut off there stops the database. A batch for which there is no room left waits for that,
  // and is not begun if there is none then.
  Status MakeRoomFor(uint64_t bytes) {
    const auto left = [&] { return weir_store_free_small_bytes(store); };
    if (left() >= bytes + kSmallLeftBytes) return Status::OK();
    // Else it is not what is in memory that fills it. Why there is none is told by what is left.
    if (MemoryBytes() >= kSmallLeftBytes) Flush().PermitUncheckedError();
    if (left() >= bytes + kSmallLeftBytes / 2) return Status::OK();
    return Status::NoSpace("the small volume of the store is full: a write of " + std::to_string(bytes) + " bytes needs room for its log, and " +
                           std::to_string(left()) + " are left: make the store on a larger volume, or write less at a time");
  }

  // What is in memory lies on the units when this returns, and its logs are gone.
  Status Flush() {
    std::vector<ColumnFamilyHandle*> all = slices;
    all.push_back(own);
    const uint64_t before = weir_store_free_small_bytes(store);
    const Status status = db->Flush(rocksdb::FlushOptions(), all);
    const auto end = std::chrono::steady_clock::now() + kLogsGone;
    while (status.ok() && weir_store_free_small_bytes(store) <= before && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return status;
  }

  // What an opening has read from the log is flushed if it is much, while the store answers.
  void FlushRecovered() {
    Added all;
    for (uint32_t slice = 0; slice < slices.size(); slice++) all[slice] = block_bytes / 2;
    FlushFull(all);
    std::vector<std::string> logs;
    if (!weir::Named(env.get(), "", ".log", &logs).ok() || logs.size() < kLogsMax) return;
    std::vector<ColumnFamilyHandle*> families = slices;
    families.push_back(own);
    rocksdb::FlushOptions options;
    options.wait = false;
    options.allow_write_stall = true;
    for (ColumnFamilyHandle* family : families) db->Flush(options, family).PermitUncheckedError();
  }

  // Memtables that would not fit in a raw block with what is added to them are flushed before: RocksDB would end one behind the write
  // that fills it, and a few bytes too many take a raw block of their own.
  void FlushFull(const Added& added) {
    // After an error there is no flush; the write tells it.
    if (!errors->Why().ok()) return;
    rocksdb::FlushOptions options;
    options.wait = false;
    options.allow_write_stall = true;
    for (const auto& [slice, bytes] : added) {
      uint64_t there = 0;
      ColumnFamilyHandle* family = Family(slice);
      if (!db->GetIntProperty(family, DB::Properties::kCurSizeActiveMemTable, &there)) continue;
      const bool fits = there + bytes <= block_bytes - block_bytes / kIndexShare;
      // What is larger than a raw block by itself takes several in any case.
      if (fits || there < block_bytes / 2) continue;
      db->Flush(options, family).PermitUncheckedError();
    }
  }

  Status Write(rocksdb::WriteBatch* batch, const Added& added, bool durable) {
    rocksdb::WriteOptions options;
    options.sync = durable;
    const uint64_t bytes = batch->GetDataSize();
    std::unique_lock<std::mutex> one_at_a_time(making_room, std::defer_lock);
    if (weir_store_free_small_bytes(store) < bytes + kSmallLittleBytes) one_at_a_time.lock();
    Status status = MakeRoomFor(bytes);
    // A memtable that is flushed begins a log, which takes room too.
    if (status.ok()) FlushFull(added);
    if (status.ok()) status = db->Write(options, batch);
    if (status.IsNoSpace() && errors->Why().IsNoSpace() && Resumes()) status = db->Write(options, batch);
    return status;
  }
};

uint32_t weir_engine_version(void) { return WEIR_ENGINE_VERSION; }

void weir_engine_free(char* reason) { free(reason); }

// The engine on its store, before its database is opened; none if that is not to be had.
static std::unique_ptr<weir_engine> On(const weir_engine_place* place, char** reason) {
  weir_store* store = weir_store_open(place->units, place->control, place->token, place->volume, place->how);
  if (store == nullptr) {
    *reason = strdup(weir_store_error());
    return nullptr;
  }
  auto engine = std::make_unique<weir_engine>();
  engine->block_bytes = weir_store_block_bytes(store);
  engine->files = weir::FileSystemOf(store);
  engine->store = store;
  // Counts only: histograms cost each request some time.
  engine->statistics = rocksdb::CreateDBStatistics();
  engine->statistics->set_stats_level(rocksdb::StatsLevel::kExceptHistogramOrTimers);
  engine->env = rocksdb::NewCompositeEnv(engine->files);
  engine->reads_left = (place->how & WEIR_READ_LEFT) != 0;
  engine->slice_options = SliceOptions(engine->block_bytes, std::max(place->sst_blocks, 1U),
                                       weir_store_count(store, "units"), engine->reads_left, rocksdb::NewLRUCache(place->cache_bytes));
  engine->read_time = std::chrono::microseconds(place->read_micros);
  engine->finds_older = (place->how & WEIR_READ_OLDER) != 0;
  return engine;
}

weir_engine* weir_engine_open(const weir_engine_place* place, char** reason) {
  std::unique_ptr<weir_engine> engine = On(place, reason);
  if (engine == nullptr) return nullptr;
  Damages missing = MissingOf(engine->store);
  if (!missing.empty() && !engine->reads_left) {
    *reason = strdup(ToldMissing(missing).c_str());
    return nullptr;
  }
  Status status = engine->reads_left ? engine->Leave(&missing, engine->finds_older) : Status::OK();
  if (status.IsNotFound()) {
    status = Status::InvalidArgument(std::string(place->volume) + ": its journal knows of no files: it is blank, or was made anew. "
                                     "Which raw blocks on the units were which file's only it says, so nothing can be read without "
                                     "it: restore the small volume from a copy");
  }
  if (status.ok()) status = engine->Open(weir_store_free_small_bytes(engine->store), missing);
  if (!status.ok()) {
    *reason = strdup((status.ToString() + engine->Mend(status)).c_str());
    return nullptr;
  }
  engine->NoteMissing(missing);
  if (!engine->reads_left) engine->FlushRecovered();
  return engine.release();
}

int weir_engine_repair(const weir_engine_place* place, void (*told)(void*, const char*), void* context, char** reason) {
  const std::unique_ptr<weir_engine> engine = On(place, reason);
  if (engine == nullptr) return WEIR_IO;
  const auto each = [&](const std::string& what) { told(context, what.c_str()); };
  if (!weir::IsThere(engine->env.get(), weir::kPath)) {
    return Told(Status::InvalidArgument("there is no database that could be mended: weir store serve makes one"), reason);
  }
  Status status = weir::RepairCurrent(engine->env.get(), each);
  if (status.ok()) status = weir::RepairIdentity(engine->OptionsOf(), each);
  // What is left to tell is of the manifest.
  std::vector<std::string> names;
  const rocksdb::DBOptions options = DatabaseOptions(engine->env.get(), 0, engine->store);
  if (status.ok()) status = engine->Listed(options, &names);
  if (status.ok()) return WEIR_OK;
  *reason = strdup((status.ToString() + (weir::SmallOf(status) == weir::Small::kManifest ? engine->Mend(status) : "")).c_str());
  return CodeOf(status);
}

void weir_engine_close(weir_engine* engine) { delete engine; }

uint32_t weir_engine_slices(const weir_engine* engine) {
  return static_cast<uint32_t>(engine->slices.size());
}

uint64_t weir_engine_block_bytes(const weir_engine* engine) { return engine->block_bytes; }

int weir_engine_add_slice(weir_engine* engine, char** reason) {
  ColumnFamilyHandle* made = nullptr;
  const std::string name = kSlice + std::to_string(engine->slices.size());
  const Status status = engine->db->CreateColumnFamily(engine->slice_options, name, &made);
  if (status.ok()) engine->slices.push_back(made);
  return Told(status, reason);
}

int weir_engine_write(weir_engine* engine, const uint8_t* bytes, size_t count, int durable, char** reason) {
  Slice changes(reinterpret_cast<const char*>(bytes), count);
  rocksdb::WriteBatch batch(count + 64);
  Added per_slice;
  Change change;
  while (Next(&changes, &change)) {
    ColumnFamilyHandle* family = engine->Family(change.slice);
    if (family == nullptr) return Told(weir_engine::NoSlice(change.slice), reason);
    per_slice[change.slice] += change.key.size() + change.value.size();
    Status added = Status::InvalidArgument("no such change");
    if (change.kind == 1) added = batch.Put(family, change.key, change.value);
    if (change.kind == 2) added = batch.Delete(family, change.key);
    if (change.kind == 3) added = batch.DeleteRange(family, change.key, change.value);
    if (!added.ok()) return Told(added, reason);
  }
  if (!changes.empty()) return Told(Status::InvalidArgument("a batch that is cut off"), reason);
  return Told(engine->Write(&batch, per_slice, durable != 0), reason);
}

int weir_engine_takes_writes(weir_engine* engine, int go_on, char** reason) {
  const Status why = engine->errors->Why();
  if (why.ok() || (go_on != 0 && why.IsNoSpace() && engine->Resumes())) return WEIR_OK;
  return Told(why, reason);
}

int weir_engine_get(weir_engine* engine, uint32_t slice, const char* key, size_t key_bytes, int only_memory,
                    void (*take)(void*, const char*, size_t), void* context, char** reason) {
  ColumnFamilyHandle* family = engine->Family(slice);
  if (family == nullptr) return Told(weir_engine::NoSlice(slice), reason);
  rocksdb::PinnableSlice value;
  rocksdb::ReadOptions options;
  const weir::Patience patience(engine->read_time);
  if (only_memory != 0) options.read_tier = rocksdb::kBlockCacheTier;
  Status status = engine->Get(options, family, Slice(key, key_bytes), &value);
  if (only_memory != 0 && status.IsIncomplete()) return WEIR_NOT_IN_MEMORY;
  // With a subcode it is a file that is not there, and no answer.
  if (status.IsNotFound() && status.subcode() == Status::kNone) {
    status = engine->finds_older ? Status::OK() : engine->MayBeMissing(slice, Slice(key, key_bytes));
    return status.ok() ? static_cast<int>(WEIR_NOT_FOUND) : Told(status, reason);
  }
  if (status.ok()) take(context, value.data(), value.size());
  const int code = Told(status, reason);
  return code == WEIR_NOT_FOUND ? static_cast<int>(WEIR_IO) : code;
}

int weir_engine_scan(weir_engine* engine, uint32_t slice, const char* from, size_t from_bytes,
                     const char* to, size_t to_bytes,
                     int (*each)(void*, const char*, size_t, const char*, size_t), void* context,
                     char** reason) {
  ColumnFamilyHandle* family = engine->Family(slice);
  if (family == nullptr) return Told(weir_engine::NoSlice(slice), reason);
  rocksdb::ReadOptions options;
  weir::Patience patience(engine->read_time);
  const Slice bound(to, to_bytes);
  if (to != nullptr) options.iterate_upper_bound = &bound;
  const std::unique_ptr<rocksdb::Iterator> at(engine->db->NewIterator(options, family));
  std::string next(from, from_bytes);
  for (;;) {
    for (at->Seek(next); at->Valid(); at->Next()) {
      const Slice key = at->key();
      Slice value = at->value();
      rocksdb::PinnableSlice sure;
      if (engine->reads_left) next.assign(key.data(), key.size()).push_back('\0');
      if (engine->EndsMissing(slice, key)) {
        const Status found = engine->db->Get(options, family, key, &sure);
        if (found.IsTimedOut()) return Told(found, reason);
        if (!found.ok()) continue;
        value = sure;
      }
      if (each(context, key.data(), key.size(), value.data(), value.size()) == 0) return WEIR_OK;
      patience.Renew();
    }
    if (at->status().ok() || at->status().IsTimedOut()) break;
    const std::string torn = next;
    if (!engine->PassTorn(family, &patience, &next)) break;
    bool goes_on = true;
    const auto take = [&](const Slice& key, const Slice& value) {
      return goes_on = each(context, key.data(), key.size(), value.data(), value.size()) != 0;
    };
    const std::string end = to == nullptr ? next : std::min(next, bound.ToString());
    const Status beside = weir::EachBesideTorn(engine->db.get(), family, engine->OptionsOf(), torn, end, &patience, take);
    if (!beside.ok()) return Told(beside, reason);
    if (!goes_on) return WEIR_OK;
  }
  return Told(at->status(), reason);
}

uint64_t weir_engine_property(weir_engine* engine, uint32_t slice, const char* name) {
  uint64_t value = 0;
  ColumnFamilyHandle* family = engine->Family(slice);
  if (family == nullptr || !engine->db->GetIntProperty(family, name, &value)) return 0;
  return value;
}

uint64_t weir_engine_count(weir_engine* engine, const char* name) {
  constexpr char kOfStore[] = "weir.";
  if (strncmp(name, kOfStore, sizeof kOfStore - 1) == 0) {
    return weir_store_count(engine->store, name + sizeof kOfStore - 1);
  }
  for (const auto& [ticker, known] : rocksdb::TickersNameMap) {
    if (known == name) return engine->statistics->getTickerCount(ticker);
  }
  return 0;
}

void weir_engine_files(weir_engine* engine, void (*each)(void*, const weir_engine_file*), void* context) {
  std::vector<rocksdb::LiveFileMetaData> files;
  engine->db->GetLiveFilesMetaData(&files);
  for (const Missing& missing : engine->missing) {
    if (!missing.IsLog()) continue;
    const weir_engine_file log = {missing.slice, 0, 0, missing.name.c_str(), missing.why.c_str(), "", 0, "", 0};
    each(context, &log);
  }
  Damages torn;
  {
    const std::lock_guard<std::mutex> hold(engine->torn_lock);
    torn = engine->torn;
  }
  for (const rocksdb::LiveFileMetaData& file : files) {
    const auto found = torn.find(file.relative_filename);
    const char* damage = found == torn.end() ? nullptr : found->second.c_str();
    for (const Missing& missing : engine->missing) {
      if (missing.name == file.relative_filename) damage = missing.why.c_str();
    }
    const weir_engine_file told = {
        engine->SliceOf(file.column_family_name),
        static_cast<uint32_t>(file.level),
        file.size,
        file.relative_filename.c_str(),
        damage,
        file.smallestkey.data(),
        file.smallestkey.size(),
        file.largestkey.data(),
        file.largestkey.size(),
    };
    each(context, &told);
  }
}

int weir_engine_verify(weir_engine* engine, const char* name, char** reason) {
  for (const Missing& missing : engine->missing) {
    if (missing.name == name) return Told(Status::Corruption(missing.why), reason);
  }
  rocksdb::SstFileReader reader(engine->OptionsOf());
  Status status = reader.Open(std::string(kPath) + "/" + name);
  if (status.ok()) {
    rocksdb::ReadOptions whole;
    whole.readahead_size = kReadAheadBytes;
    whole.fill_cache = false;
    status = reader.VerifyChecksum(whole);
  }
  if (status.ok()) return WEIR_OK;
  std::vector<rocksdb::LiveFileMetaData> files;
  engine->db->GetLiveFilesMetaData(&files);
  const auto lives = [name](const rocksdb::LiveFileMetaData& file) { return file.relative_filename == name; };
  if (std::none_of(files.begin(), files.end(), lives)) return WEIR_OK;
  const int code = Told(status, reason);
  return code == WEIR_NOT_FOUND ? static_cast<int>(WEIR_DAMAGED) : code;
}

int weir_engine_compact(weir_engine* engine, uint32_t slice, char** reason) {
  ColumnFamilyHandle* family = engine->Family(slice);
  if (family == nullptr) return Told(weir_engine::NoSlice(slice), reason);
  rocksdb::CompactRangeOptions options;
  // What was deleted is left out in the lowest level only.
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  Status status = engine->db->CompactRange(options, family, nullptr, nullptr);
  if (status.IsNoSpace() && engine->Resumes()) status = engine->db->CompactRange(options, family, nullptr, nullptr);
  return Told(status, reason);
}
