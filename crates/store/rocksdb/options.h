// How RocksDB is set up for `weir store`.
#ifndef WEIR_OPTIONS_H
#define WEIR_OPTIONS_H

#include <rocksdb/cache.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <memory>

#include "weir_store.h"

namespace weir {

// Most that a compaction takes at a time, in SSTs: so much room there has to be for what it writes.
constexpr uint64_t kCompactionFiles = 8;
// A reader of a whole SST takes so much at a time.
constexpr size_t kReadAheadBytes = 2 << 20;

// An SST of a full memtable fits in a raw block, and one of a compaction in `sst_blocks`: RocksDB ends a file behind the value
// that reaches the size, and a value may be half a megabyte.
inline rocksdb::ColumnFamilyOptions SliceOptions(uint64_t block_bytes, uint32_t sst_blocks, uint64_t units, bool reads_left,
                                                 const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions options;
  // RocksDB stops all puts when one slice has no memory left, and a flush takes as long as a raw block: so that all units write
  // meanwhile, eight slices have more memtables than there are units, though keys do not come evenly to them.
  options.max_write_buffer_number = static_cast<int>(std::clamp<uint64_t>(units / 4, 6, 12));
  // A write that would not fit in a raw block goes to the next memtable (FlushFull). RocksDB itself ends one only when it has as much as
  // all of a slice together: so an opening, which reads them from the log as one, need not wait for units to take any.
  options.write_buffer_size = (options.max_write_buffer_number + 1) * block_bytes;
  // A compaction of level 0 takes as long as several flushes, as one thread writes what it makes. Meanwhile RocksDB would merge
  // what has come to level 0 since there, which is written once more for nothing: not before there is more of it.
  options.level0_file_num_compaction_trigger = static_cast<int>(std::clamp<uint64_t>(units / 4, 4, 8));
  options.arena_block_size = std::min<uint64_t>(block_bytes / 8, 1 << 20);
  const uint64_t file_bytes = sst_blocks * block_bytes;
  options.target_file_size_base = file_bytes - block_bytes / 8;
  options.max_bytes_for_level_base = 8 * file_bytes;
  options.max_compaction_bytes = kCompactionFiles * file_bytes;
  options.level_compaction_dynamic_level_bytes = true;
  // Files of levels between would have up to twice the size, and a little of a second raw block.
  options.level_compaction_dynamic_file_size = false;
  // What is compressed would leave the rest of its raw block unused.
  options.compression = rocksdb::kNoCompression;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.block_size = 16 << 10;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  // So that the cache's size is the bound of all that is kept of SSTs.
  table.cache_index_and_filter_blocks = true;
  table.cache_index_and_filter_blocks_with_high_priority = true;
  // What a reader reads ahead of itself fails as a whole: what is damaged would begin up to 256 KiB before it does.
  if (reads_left) table.max_auto_readahead_size = 0;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

inline rocksdb::DBOptions DatabaseOptions(rocksdb::Env* env, uint64_t small_bytes, const weir_store* store) {
  rocksdb::DBOptions options;
  options.env = env;
  options.create_if_missing = true;
  // A flush ends when its table lies on its unit, as most of a compaction's do: the more of them there are, the more units
  // write; a few more, as some wait for units that are busy. Their threads wait nearly all the time. RocksDB alone would let a
  // quarter of the jobs be flushes.
  const uint64_t units = weir_store_count(store, "units"), puts_max = weir_store_count(store, "puts_max");
  options.max_background_flushes = options.max_background_compactions =
      static_cast<int>(std::clamp<uint64_t>(units + units / 4, 2, puts_max));
  // Puts are slowed before they are stopped; RocksDB begins with 16 MB/s, less than what one unit takes.
  options.delayed_write_rate = uint64_t{1} << 30;
  // Parts of one compaction would each end with an SST that is not full; slices are compacted side by side.
  options.max_subcompactions = 1;
  options.compaction_readahead_size = kReadAheadBytes;
  // Damage of the log is told, and not taken for its end: what was acknowledged lies behind it.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  // The small volume has room for logs of a bounded size.
  options.max_total_wal_size = std::max<uint64_t>(small_bytes / 4, 8 << 20);
  options.max_manifest_file_size = 4 << 20;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.keep_log_file_num = 2;
  options.max_log_file_size = 1 << 20;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  // It would write what each slice has in its log to the units, one slice after the other, before anybody is answered.
  options.avoid_flush_during_recovery = true;
  return options;
}

}  // namespace weir

#endif
