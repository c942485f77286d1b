// safetensors_test - written heads read back; everything malformed is refused with a line that says
// why.

#include "tensor/hx_rng.h"
#include "tensor/safetensors.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A file as bytes: prefix, JSON, `data_size` bytes of data.
typedef struct {
    uint8_t *bytes;
    size_t size;
} file_t;

static file_t make_file_n(const char *json, size_t length, size_t data_size)
{
    file_t file = {.size = SAFETENSORS_PREFIX_SIZE + length + data_size};
    file.bytes = hx_new(file.size, 1);
    for (size_t byte = 0; byte < SAFETENSORS_PREFIX_SIZE; byte++) {
        file.bytes[byte] = (uint8_t)((uint64_t)length >> (8 * byte));
    }
    memcpy(file.bytes + SAFETENSORS_PREFIX_SIZE, json, length);
    return file;
}

static file_t make_file(const char *json, size_t data_size)
{
    return make_file_n(json, strlen(json), data_size);
}

static void drop_file(file_t *file)
{
    free(file->bytes);
}

static const char *const good_json =
    "{\"__metadata__\":{\"format\":\"pt\",\"step\":\"7\"},"
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
    "\"none\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[24,24]},"
    "\"one\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[30,31]}}  ";

Test(safetensors, index_of_a_file_is_in_the_order_of_its_data)
{
    file_t file = make_file(good_json, 31);
    safetensors_t *index = NULL;
    hx_fault_t fault;
    cr_assert_eq(safetensors_open(file.bytes, file.size, file.size, &index, &fault), HX_OK);
    cr_assert_eq(safetensors_count(index), 4);
    const char *const names[] = {"a", "none", "b", "one"};
    const size_t base = file.size - 31;
    const size_t offsets[] = {base, base + 24, base + 24, base + 30};
    const size_t sizes[] = {24, 0, 6, 1};
    for (size_t at = 0; at < 4; at++) {
        const safetensors_tensor_t *const tensor = safetensors_at(index, at);
        cr_assert_str_eq(tensor->name, names[at]);
        cr_assert_eq(tensor->offset, offsets[at]);
        cr_assert_eq(tensor->size, sizes[at]);
        cr_assert_eq(safetensors_find(index, names[at]), tensor);
    }
    cr_assert_eq(safetensors_at(index, 0)->rank, 2);
    cr_assert_eq(safetensors_at(index, 0)->shape[1], 3);
    cr_assert_eq(safetensors_at(index, 2)->dtype, SAFETENSORS_BF16);
    cr_assert_eq(safetensors_at(index, 3)->rank, 0);
    cr_assert_null(safetensors_find(index, "c"));
    cr_assert_null(safetensors_find(index, "__metadata__"));
    cr_assert_str_eq(safetensors_meta(index, "step"), "7");
    cr_assert_null(safetensors_meta(index, "stop"));
    safetensors_destroy(&index);
    cr_assert_null(index);
    safetensors_destroy(&index);
    drop_file(&file);
}

Test(safetensors, the_head_alone_is_enough_for_the_index)
{
    file_t file = make_file(good_json, 31);
    size_t size = 0;
    cr_assert_eq(safetensors_head_size(file.bytes, file.size, &size, NULL), HX_OK);
    cr_assert_eq(size, file.size - 31);
    uint8_t *const head = hx_new(size, 1);
    memcpy(head, file.bytes, size);
    safetensors_t *index = NULL;
    cr_assert_eq(safetensors_open(head, size, file.size, &index, NULL), HX_OK);
    cr_assert_eq(safetensors_open(head, size - 1, file.size, &(safetensors_t *){NULL}, NULL),
                 HX_E_FORMAT);
    safetensors_destroy(&index);
    free(head);
    drop_file(&file);
}

// Each with a word that its line must contain.
static const struct {
    const char *json;
    size_t data_size;
    const char *word;
} malformed[] = {
    {"[]", 0, "JSON object"},
    {" {}", 0, "JSON object"},
    {"{}{}", 0, "header byte"},
    {"{} x", 0, "header byte"},
    {"{", 0, "not a whole"},
    {"{\"a\":", 0, "header byte"},
    {"{\"a\":{}}", 0, "dtype, shape"},
    {"{\"a\":7}", 0, "dtype, shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "dtype, shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "dtype, shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"offsets\":[0,4]}}", 4, "data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, "duplicate"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "duplicate"},
    {"{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "empty"},
    {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "header byte"},
    {"{\"a\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "header byte"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "unusable"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "unusable"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "unusable"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4, "unusable"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
     "unusable"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "unusable"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4, "unusable"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "lies at"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}", 4, "lies at"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
     "shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
     "shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4294967296,9223372036854775807],"
     "\"data_offsets\":[0,0]}}",
     0, "shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4,
     "header byte"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "gap"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "only 4"},
    {"{}", 1, "only 0"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
     12, "overlap"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     8, "overlap"},
    {"{\"__metadata__\":[]}", 0, "not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "not a text"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[[[1]]],\"data_offsets\":[0,4]}}", 4, "too deep"},
};

Test(safetensors, each_malformed_head_is_refused_by_name)
{
    for (size_t at = 0; at < HX_COUNT(malformed); at++) {
        file_t file = make_file(malformed[at].json, malformed[at].data_size);
        safetensors_t *index = NULL;
        hx_fault_t fault = {""};
        cr_assert_eq(safetensors_open(file.bytes, file.size, file.size, &index, &fault),
                     HX_E_FORMAT, "%s", malformed[at].json);
        cr_assert_null(index);
        cr_assert_not_null(strstr(fault.text, malformed[at].word), "'%s' should speak of '%s': %s",
                           malformed[at].json, malformed[at].word, fault.text);
        cr_assert_eq(safetensors_open(file.bytes, file.size, file.size, &index, NULL), HX_E_FORMAT);
        drop_file(&file);
    }
}

Test(safetensors, every_truncation_is_refused)
{
    file_t file = make_file(good_json, 31);
    for (size_t size = 0; size < file.size; size++) {
        // As large as the cut, so that a sanitizer sees any read beyond it.
        uint8_t *const cut = hx_new(size, 1);
        safetensors_t *index = NULL;
        memcpy(cut, file.bytes, size);
        cr_assert_eq(safetensors_open(cut, size, size, &index, NULL), HX_E_FORMAT, "at %zu", size);
        free(cut);
    }
    drop_file(&file);
}

Test(safetensors, every_other_header_length_is_refused)
{
    file_t file = make_file(good_json, 31);
    for (size_t bit = 0; bit < 64; bit++) {
        safetensors_t *index = NULL;
        file.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cr_assert_eq(safetensors_open(file.bytes, file.size, file.size, &index, NULL), HX_E_FORMAT,
                     "bit %zu", bit);
        file.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    drop_file(&file);
}

Test(safetensors, random_changes_are_refused_or_read_within_bounds)
{
    hx_rng_t rng = hx_rng_seed(seed_of("changes"));
    for (int round = 0; round < 20000; round++) {
        file_t file = make_file(good_json, 31);
        for (uint64_t change = 0; change < 1 + hx_rng_below(&rng, 3); change++) {
            file.bytes[hx_rng_below(&rng, file.size - 31)] = (uint8_t)hx_rng_next(&rng);
        }
        safetensors_t *index = NULL;
        if (safetensors_open(file.bytes, file.size, file.size, &index, NULL) == HX_OK) {
            for (size_t at = 0; at < safetensors_count(index); at++) {
                const safetensors_tensor_t *const tensor = safetensors_at(index, at);
                cr_assert_leq(tensor->offset, file.size);
                cr_assert_leq(tensor->size, file.size - tensor->offset);
            }
            safetensors_destroy(&index);
        }
        drop_file(&file);
    }
}

static void refuse_repeated(const char *piece, size_t count)
{
    const size_t length = strlen(piece);
    char *const json = hx_new(count * length + 6, 1);
    strcpy(json, "{\"a\":");
    for (size_t at = 0; at < count; at++) {
        memcpy(json + 5 + at * length, piece, length);
    }
    file_t file = make_file_n(json, 5 + count * length, 0);
    safetensors_t *index = NULL;
    hx_fault_t fault = {""};
    cr_assert_eq(safetensors_open(file.bytes, file.size, file.size, &index, &fault), HX_E_FORMAT);
    cr_assert_not_null(strstr(fault.text, "too deep or too many"), "%s", fault.text);
    drop_file(&file);
    free(json);
}

Test(safetensors, bombs_are_refused_before_they_cost_memory)
{
    refuse_repeated("[", 1000000);
    refuse_repeated("{\"a\":", 1000000);
    refuse_repeated("0,", 4000000);
}

Test(safetensors, a_header_beyond_the_limit_is_refused)
{
    const uint8_t prefix[SAFETENSORS_PREFIX_SIZE] = {1, 0, 0, 2};
    size_t size = 0;
    hx_fault_t fault = {""};
    cr_assert_eq(safetensors_head_size(prefix, UINT64_MAX, &size, &fault), HX_E_FORMAT);
    cr_assert_not_null(strstr(fault.text, "at most"));
    const uint8_t largest[SAFETENSORS_PREFIX_SIZE] = {0, 0, 0, 2};
    cr_assert_eq(safetensors_head_size(largest, UINT64_MAX, &size, &fault), HX_OK);
    cr_assert_eq(size, SAFETENSORS_HEADER_MAX + SAFETENSORS_PREFIX_SIZE);
}

Test(safetensors, names_up_to_the_limit_are_taken)
{
    for (size_t length = SAFETENSORS_NAME_MAX; length <= SAFETENSORS_NAME_MAX + 1; length++) {
        char name[SAFETENSORS_NAME_MAX + 2] = "";
        char json[SAFETENSORS_NAME_MAX + 100];
        memset(name, 'n', length);
        const int written =
            snprintf(json, sizeof json,
                     "{\"%s\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name);
        file_t file = make_file_n(json, (size_t)written, 1);
        safetensors_t *index = NULL;
        const hx_err_t err = safetensors_open(file.bytes, file.size, file.size, &index, NULL);
        cr_assert_eq(err, length <= SAFETENSORS_NAME_MAX ? HX_OK : HX_E_FORMAT);
        safetensors_destroy(&index);
        drop_file(&file);
    }
}

// Random tensors of every type, written and read back.
Test(safetensors, what_is_written_reads_back)
{
    hx_rng_t rng = hx_rng_seed(seed_of("written"));
    for (int round = 0; round < 200; round++) {
        enum { COUNT = 20 };
        safetensors_tensor_t tensors[COUNT] = {0};
        char names[COUNT][32];
        const size_t count = (size_t)hx_rng_below(&rng, COUNT + 1);
        uint64_t data_size = 0;
        for (size_t at = 0; at < count; at++) {
            snprintf(names[at], sizeof names[at], "h.%zu.\"w\\\n\xc3\xa9\"", at);
            tensors[at].name = names[at];
            tensors[at].dtype = (safetensors_dtype_t)hx_rng_below(&rng, SAFETENSORS_DTYPES_COUNT);
            tensors[at].rank = (uint32_t)hx_rng_below(&rng, SAFETENSORS_RANK_MAX + 1);
            uint64_t size = safetensors_dtype_size(tensors[at].dtype);
            for (uint32_t axis = 0; axis < tensors[at].rank; axis++) {
                tensors[at].shape[axis] = hx_rng_below(&rng, 4);
                size *= tensors[at].shape[axis];
            }
            data_size += size;
        }
        const safetensors_meta_t meta[] = {{"format", "pt"}, {"step", "12 \"quoted\""}};
        uint8_t *head = NULL;
        size_t size = 0;
        hx_fault_t fault;
        cr_assert_eq(safetensors_write_head(tensors, count, meta, 2, &head, &size, &fault), HX_OK);
        cr_assert_eq(size % 8, 0);
        safetensors_t *index = NULL;
        cr_assert_eq(safetensors_open(head, size, size + data_size, &index, &fault), HX_OK, "%s",
                     fault.text);
        cr_assert_eq(safetensors_count(index), count);
        for (size_t at = 0; at < count; at++) {
            const safetensors_tensor_t *const found = safetensors_find(index, names[at]);
            cr_assert_not_null(found);
            cr_assert_eq(found->dtype, tensors[at].dtype);
            cr_assert_eq(found->rank, tensors[at].rank);
            cr_assert_arr_eq(found->shape, tensors[at].shape, found->rank * sizeof(uint64_t));
            cr_assert_eq(found->offset, tensors[at].offset);
            cr_assert_eq(found->size, tensors[at].size);
        }
        cr_assert_str_eq(safetensors_meta(index, "step"), "12 \"quoted\"");
        safetensors_destroy(&index);
        free(head);
    }
}

static void refuse_writing(safetensors_tensor_t first, safetensors_tensor_t second,
                           const char *word)
{
    safetensors_tensor_t tensors[] = {first, second};
    uint8_t *head = NULL;
    size_t size = 0;
    hx_fault_t fault = {""};
    cr_assert_eq(safetensors_write_head(tensors, 2, NULL, 0, &head, &size, &fault), HX_E_ARG, "%s",
                 word);
    cr_assert_null(head);
    cr_assert_not_null(strstr(fault.text, word), "%s: %s", word, fault.text);
}

Test(safetensors, what_a_reader_would_refuse_is_not_written)
{
    const safetensors_tensor_t good = {.name = "a", .dtype = SAFETENSORS_F32, .rank = 1};
    safetensors_tensor_t bad = good;
    refuse_writing(good, good, "twice");
    bad.name = "";
    refuse_writing(good, bad, "empty");
    bad.name = "__metadata__";
    refuse_writing(good, bad, "reserved");
    bad.name = "b\xff";
    refuse_writing(good, bad, "UTF-8");
    bad.name = "b";
    bad.rank = SAFETENSORS_RANK_MAX + 1;
    refuse_writing(good, bad, "shape");
    bad.rank = 2;
    bad.shape[0] = UINT64_C(1) << 40;
    bad.shape[1] = UINT64_C(1) << 40;
    refuse_writing(good, bad, "shape");
    bad.shape[0] = 0;
    bad.shape[1] = UINT64_MAX;
    refuse_writing(good, bad, "shape");
    char name[SAFETENSORS_NAME_MAX + 2] = "";
    memset(name, 'n', SAFETENSORS_NAME_MAX + 1);
    bad = good;
    bad.name = name;
    refuse_writing(good, bad, "too long");
}

Test(safetensors, unusable_metadata_and_too_many_tensors_are_not_written)
{
    const safetensors_meta_t twice[] = {{"a", "1"}, {"a", "2"}};
    const safetensors_meta_t bytes[] = {{"a", "\xff"}};
    uint8_t *head = NULL;
    size_t size = 0;
    cr_assert_eq(safetensors_write_head(NULL, 0, twice, 2, &head, &size, NULL), HX_E_ARG);
    cr_assert_eq(safetensors_write_head(NULL, 0, bytes, 1, &head, &size, NULL), HX_E_ARG);
    safetensors_tensor_t one = {.name = "a"};
    cr_assert_eq(
        safetensors_write_head(&one, SAFETENSORS_TENSORS_MAX + 1, NULL, 0, &head, &size, NULL),
        HX_E_ARG);
    cr_assert_null(head);
}

Test(safetensors, types_have_names_and_sizes)
{
    cr_assert_str_eq(safetensors_dtype_name(SAFETENSORS_BOOL), "BOOL");
    cr_assert_eq(safetensors_dtype_size(SAFETENSORS_F64), 8);
    cr_assert_eq(safetensors_dtype_size(SAFETENSORS_BF16), 2);
}
