// A program that uses RocksDB as any other: it puts numbered values with sync and says which are acknowledged, or
// lists what is there. rocksdb.rs kills it, and what it depends on.

#include <rocksdb/c.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS 400
#define VALUE 4000

static void fill(char *value, uint64_t number) {
  memset(value, (int)(number % 251), VALUE);
  snprintf(value, 21, "%020llu", (unsigned long long)number);
}

static void end_if(char *error) {
  if (error == NULL) return;
  fprintf(stderr, "%s\n", error);
  _Exit(1);
}

static void put_all(rocksdb_t *db, uint64_t first, uint64_t count) {
  rocksdb_writeoptions_t *sync = rocksdb_writeoptions_create();
  rocksdb_writeoptions_set_sync(sync, 1);
  char key[16], value[VALUE];
  for (uint64_t number = first; number < first + count; number++) {
    snprintf(key, sizeof key, "%06u", (unsigned)(number * 7919 % KEYS));
    fill(value, number);
    char *error = NULL;
    rocksdb_put(db, sync, key, 6, value, VALUE, &error);
    end_if(error);
    printf("%llu\n", (unsigned long long)number);
    fflush(stdout);
  }
}

static void list_all(rocksdb_t *db) {
  rocksdb_iterator_t *each = rocksdb_create_iterator(db, rocksdb_readoptions_create());
  for (rocksdb_iter_seek_to_first(each); rocksdb_iter_valid(each); rocksdb_iter_next(each)) {
    size_t bytes;
    const char *found = rocksdb_iter_value(each, &bytes);
    char value[VALUE];
    uint64_t number = strtoull(found, NULL, 10);
    fill(value, number);
    if (bytes != VALUE || memcmp(found, value, VALUE) != 0) {
      fprintf(stderr, "the value of %llu is not what was put\n", (unsigned long long)number);
      _Exit(1);
    }
    printf("%llu\n", (unsigned long long)number);
  }
  char *error = NULL;
  rocksdb_iter_get_error(each, &error);
  rocksdb_iter_destroy(each);
  end_if(error);
}

int main(int count, char **words) {
  if (count < 3) return 2;
  rocksdb_options_t *options = rocksdb_options_create();
  rocksdb_options_set_create_if_missing(options, 1);
  rocksdb_options_set_write_buffer_size(options, 1 << 20);
  rocksdb_options_set_target_file_size_base(options, 1 << 20);
  rocksdb_options_set_level0_file_num_compaction_trigger(options, 2);
  rocksdb_options_set_compression(options, rocksdb_no_compression);
  char *error = NULL;
  rocksdb_t *db = rocksdb_open(options, words[2], &error);
  end_if(error);
  if (count > 4) {
    put_all(db, strtoull(words[3], NULL, 10), strtoull(words[4], NULL, 10));
  } else {
    list_all(db);
  }
  rocksdb_close(db);
  return 0;
}
