// The engine of `weir store`: RocksDB on a store of Weir, sliced, as C. crates/store/src/services/loaded.rs has the same in
// Rust. Functions that return int return a code of weir_store.h; if that is not WEIR_OK, *reason is a text that
// weir_engine_free takes back. All of it may be called by many threads.
#ifndef WEIR_ENGINE_H
#define WEIR_ENGINE_H

#include "weir_store.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the library shows, as against all else in it.
#pragma GCC visibility push(default)

// Counted up when anything below changes: who loads another one is told to build it anew.
enum { WEIR_ENGINE_VERSION = 6 };

// What weir_engine_get says, without a reason, if it would have to ask the units.
enum { WEIR_NOT_IN_MEMORY = 100 };

// Beside those of weir_store.h, with WEIR_READ_LEFT: also what may be older than what was written last.
enum { WEIR_READ_OLDER = 4 };

// In the place of a slice's number: the column family of what is the store's own.
#define WEIR_ENGINE_OWN UINT32_MAX

typedef struct weir_engine weir_engine;

typedef struct {
  const char* units;
  const char* control;
  const char* token;  // or null
  const char* volume;
  uint64_t cache_bytes;
  // How long the units may take to answer a read that somebody waits for.
  uint64_t read_micros;
  // Raw blocks of an SST that compaction makes, at most.
  uint32_t sst_blocks;
  // As weir_store_open has it.
  int how;
} weir_engine_place;

typedef struct {
  uint32_t slice;
  uint32_t level;
  uint64_t bytes;
  const char* name;
  const char* damage;  // why it cannot be read, if that is known; or null
  const char* smallest;
  size_t smallest_bytes;
  const char* largest;
  size_t largest_bytes;
} weir_engine_file;

uint32_t weir_engine_version(void);
void weir_engine_free(char* reason);

// Opens the database, or makes one without slices. Null if that fails.
weir_engine* weir_engine_open(const weir_engine_place* place, char** reason);
void weir_engine_close(weir_engine* engine);

// Makes small files of the database anew that are not what was written, as far as other files have what they said. Calls `told` with
// each that was.
int weir_engine_repair(const weir_engine_place* place, void (*told)(void* context, const char* what), void* context, char** reason);

uint32_t weir_engine_slices(const weir_engine* engine);
uint64_t weir_engine_block_bytes(const weir_engine* engine);
// Not while anybody else uses the engine.
int weir_engine_add_slice(weir_engine* engine, char** reason);

// A batch, all or nothing: for each change a byte (1 put, 2 delete, 3 delete from the first up to, not with, the second),
// the slice, the bytes of the key and of the value (or second key), 4 bytes each, little-endian; then both. With
// `durable` it is durable when this returns, and so is whatever was written before.
int weir_engine_write(weir_engine* engine, const uint8_t* changes, size_t bytes, int durable, char** reason);

// Whether writes are taken, or why not. After one for which there was no room none are until the engine goes on, which a write
// has it try, and so does this with `go_on`; once a second at most.
int weir_engine_takes_writes(weir_engine* engine, int go_on, char** reason);

// Calls `take` with the value; WEIR_NOT_FOUND without a reason if there is none. With `only_memory` no unit is asked.
int weir_engine_get(weir_engine* engine, uint32_t slice, const char* key, size_t key_bytes, int only_memory,
                    void (*take)(void* context, const char* value, size_t bytes), void* context,
                    char** reason);

// Calls `each` with what is from `from` up to, not with, `to` (null: to the end), in order, until it returns 0.
int weir_engine_scan(weir_engine* engine, uint32_t slice, const char* from, size_t from_bytes,
                     const char* to, size_t to_bytes,
                     int (*each)(void* context, const char* key, size_t key_bytes, const char* value,
                                 size_t value_bytes),
                     void* context, char** reason);

// A property of RocksDB that is a number; 0 if it does not know it.
uint64_t weir_engine_property(weir_engine* engine, uint32_t slice, const char* name);

// What RocksDB has counted under the name of one of its tickers since it was opened; with `weir.` before it, a count of the
// store below (weir_store_count). 0 if there is no such name.
uint64_t weir_engine_count(weir_engine* engine, const char* name);

// Every SST, and every log that could not be read whole: with its damage, and without keys.
void weir_engine_files(weir_engine* engine, void (*each)(void* context, const weir_engine_file* file),
                       void* context);
// Reads all of an SST and compares its checksums. One that was deleted meanwhile is sound.
int weir_engine_verify(weir_engine* engine, const char* name, char** reason);

// Writes a slice anew, without what was deleted in it.
int weir_engine_compact(weir_engine* engine, uint32_t slice, char** reason);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
